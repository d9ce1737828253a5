package app

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/bench/pyworker"
	"fisub/device"
	"fisub/device/counters"
	"fisub/device/nvcc"
	"fisub/device/vgpu"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/report"
)

type emuOptions struct {
	tools   string
	timeout time.Duration
	profile bool
	gpu     string
	json    string
}

func (a *app) emuCommand() *cli.Command {
	o := emuOptions{gpu: counters.GPUs[0].Name}
	return &cli.Command{
		Name:      "emu",
		Usage:     "run a CUDA program on the virtual GPU",
		ArgsUsage: "PROGRAM [ARGS...]",
		Flags: []cli.Flag{
			stringFlag(&o.tools, "sanitize", "check launches as `TOOL[,...]`: all, "+strings.Join(device.Sanitizers, ", "), ""),
			timeFlag(&o.timeout, "timeout", "end the program after `TIME`", "none"),
			boolFlag(&o.profile, "profile", "count sectors, wavefronts and instructions"),
			boundsFlag(&o.gpu),
			stringFlag(&o.json, "counters", "with --profile: also write `FILE`: JSON lines, or a page (.html)", ""),
		},
		Action: func(c *cli.Context) error { return a.emu(c.Context, o, c.Args().Slice()) },
	}
}

func (a *app) nvccCommand() *cli.Command {
	return &cli.Command{
		Name:            "nvcc",
		Usage:           "compile a CUDA program for the virtual GPU and for GPUs",
		ArgsUsage:       "[ARGS...]",
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			if args := c.Args().Slice(); len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
				return cli.ShowSubcommandHelp(c)
			}
			return a.nvcc(c.Context, c.Args().Slice())
		},
	}
}

func (a *app) nvcc(ctx context.Context, args []string) error {
	if os.Getenv(nvcc.Finding) != "" {
		_, err := fmt.Fprintln(a.stdout, nvcc.Self)
		return err
	}
	root, err := cache.Root()
	if err != nil {
		return err
	}
	t, err := a.toolchain(ctx, root)
	if err != nil {
		return usage.Invalid(err)
	}
	begun := time.Now()
	err = a.compile(ctx, root, t, args)
	if name := programOf(args); err == nil && isNewProgram(a.Path(name), begun) {
		if err := a.noteMissing(ctx, root, t, a.Path(name)); err != nil {
			return err
		}
		if ui.IsTerminal(a.stderr) {
			a.term.Note("run it with: fisub emu %s", plain.Word(filepath.Dir(name)+"/"+filepath.Base(name)))
		}
	}
	return err
}

// programOf returns the output file of an nvcc with these arguments, if that is a program.
func programOf(args []string) string {
	name := "a.out"
	for i, arg := range args {
		if value, found := strings.CutPrefix(arg, "--output-file="); found {
			name = value
		} else if (arg == "-o" || arg == "--output-file") && i+1 < len(args) {
			name = args[i+1]
		} else if value, found := strings.CutPrefix(arg, "-o="); found {
			name = value
		}
	}
	return name
}

// isNewProgram reports whether path is a program, not a library or an object file, that was written after begun.
func isNewProgram(path string, begun time.Time) bool {
	st, err := os.Stat(path)
	if err != nil || st.ModTime().Before(begun.Add(-time.Second)) { // some file systems keep whole seconds
		return false
	}
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

func (a *app) emu(ctx context.Context, o emuOptions, program []string) error {
	tools, err := sanitizers(o.tools)
	if err != nil {
		return err
	}
	gpu, err := counters.Named(o.gpu)
	if err != nil {
		return err
	}
	if o.json != "" && !o.profile {
		return usage.Errorf("", "emu: --counters needs --profile")
	}
	root, err := cache.Root()
	if err != nil {
		return err
	}
	library, python, err := pyworker.ForPrograms(ctx, root)
	if err != nil {
		return err
	}
	if library == "" {
		return usage.Errorf("build fisub with scripts/build",
			"emu: this fisub was built without the virtual GPU's library")
	}
	t, err := a.toolchain(ctx, root)
	if err != nil {
		return usage.Invalid(err)
	}
	cuda, err := vgpu.Runtime(ctx, root, t)
	if err != nil {
		return err
	}
	path, err := exec.LookPath(program[0])
	if err != nil {
		return usage.Errorf("a program in this folder is ./"+filepath.Base(program[0]), "emu: %w", err)
	}
	if err := errors.Join(linked(path, filepath.Base(cuda)), lackingLibraries(path)); err != nil {
		return err
	}
	if flag := isolated(program); flag != "" {
		return usage.Errorf("leave it out", "emu: %s %s: Python then does not load what fisub adds to it", program[0], flag)
	}
	report, err := os.CreateTemp("", "fisub-emu-")
	if err != nil {
		return err
	}
	defer os.Remove(report.Name())
	defer report.Close()

	run := ctx
	if o.timeout > 0 {
		var stop func()
		run, stop = context.WithTimeout(ctx, o.timeout)
		defer stop()
	}
	cmd := exec.CommandContext(run, path, program[1:]...)
	cmd.Args[0] = program[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.term.In, a.stdout, a.stderr
	if ui.IsTerminal(a.stdout) {
		cmd.Stdout = &overProgress{a.stdout, report, false}
	}
	libraries := filepath.Dir(cuda)
	if dir, err := cublasOf(ctx, root, t, path); err != nil {
		return err
	} else if dir != "" {
		libraries += ":" + dir
	}
	if set := os.Getenv("LD_LIBRARY_PATH"); set != "" {
		libraries += ":" + set
	}
	cmd.Env = append(append(os.Environ(), python...), "LD_LIBRARY_PATH="+libraries,
		"FISUB_EMU="+library, "FISUB_EMU_RUNTIME="+cuda,
		"FISUB_EMU_REPORT="+report.Name(), "FISUB_EMU_SANITIZE="+strings.Join(tools, ","))
	if a.term.Moves() {
		cmd.Env = append(cmd.Env, "FISUB_EMU_PROGRESS=1")
	}
	var counted *os.File
	if o.profile {
		if counted, err = os.CreateTemp("", "fisub-emu-"); err != nil {
			return err
		}
		defer os.Remove(counted.Name())
		defer counted.Close()
		cmd.Env = append(cmd.Env, "FISUB_EMU_COUNTERS="+counted.Name())
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it reports running kernels, then ends
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	found, rerr := os.ReadFile(report.Name())
	if rerr != nil {
		return rerr
	}
	count := func(e vgpu.Event) int { return bytes.Count(found, []byte{byte(e)}) }
	if count(vgpu.Progress) > 0 {
		fmt.Fprint(a.stderr, plain.Passing("")) // the program may have been killed
	}
	if count(vgpu.Attached) > 0 {
		text := "first launches checked for races, unwritten memory" // fisub emu --help has the details
		if n := count(vgpu.Unchecked) - count(vgpu.LaterChecked); n > 0 {
			text += fmt.Sprintf(", except %d to save time (--sanitize: every launch)", n)
		}
		if tools != nil {
			every := "every launch checked for findings of " + strings.Join(tools, ", ")
			if len(tools) < len(device.Sanitizers) {
				every += "; " + text
			}
			text = every
		}
		if count(vgpu.Unlimited) > 0 {
			text += "; register limits were not checked: the program has no machine code for the PTX's arch"
		}
		if count(vgpu.Racy) > 0 {
			text += "; Triton's kernels were not checked for races"
		}
		a.term.Note("fisub: %s launched, %s, %s; %s", plain.Count(count(vgpu.Launched), "kernel"),
			plain.Count(count(vgpu.Faulted), "fault"), plain.Count(count(vgpu.Hazard), "warning"), text)
	} else {
		a.term.Note("fisub: %s did not use CUDA", program[0])
	}
	if o.profile {
		if err := a.showCounters(counted.Name(), o.json, filepath.Base(program[0]), gpu); err != nil {
			return err
		}
	}
	exit, _ := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case exit != nil && exit.ExitCode() == exitInterrupted: // a terminal sends Ctrl-C to the program too
		return context.Canceled
	case run.Err() != nil:
		a.term.Error(fmt.Sprintf("emu: %s: timeout after %v", program[0], o.timeout), "")
		return shown(exitNotPassed)
	case count(vgpu.Lacking) > 0:
		return shown(exitError)
	case count(vgpu.Faulted)+count(vgpu.Hazard) > 0:
		return shown(exitNotPassed)
	}
	return a.ended(program[0], err)
}

// pythonFlag matches a group of Python's flags up to the first one that isolates Python or has a value.
var pythonName, pythonFlag = regexp.MustCompile(`^python[\d.]*$`), regexp.MustCompile(`^-[^-IEScmWX]*([IEScmWX])?(.*)`)

// isolated returns the flag with which a command that starts Python keeps it from loading fisub's part, or "".
func isolated(command []string) string {
	if !pythonName.MatchString(filepath.Base(command[0])) {
		return ""
	}
	for i := 1; i < len(command) && strings.HasPrefix(command[i], "-") && command[i] != "-"; i++ {
		switch m := pythonFlag.FindStringSubmatch(command[i]); m[1] {
		case "I", "E", "S":
			return "-" + m[1]
		case "c", "m":
			return ""
		case "W", "X":
			if m[2] == "" {
				i++ // the flag's value
			}
		}
	}
	return ""
}

// overProgress is the terminal as the stdout of a program, which shows the progress of its kernels there through
// stderr.
type overProgress struct {
	io.Writer
	report *os.File // of the program's events, read up to the first progress
	shown  bool
}

func (w *overProgress) Write(p []byte) (int, error) {
	for buf := make([]byte, 4096); !w.shown; {
		n, err := w.report.Read(buf)
		if err != nil {
			break
		}
		w.shown = bytes.IndexByte(buf[:n], byte(vgpu.Progress)) >= 0
	}
	if !w.shown {
		return w.Writer.Write(p)
	}
	if _, err := w.Writer.Write(append([]byte(plain.Passing("")), p...)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// showCounters shows the counters of a program's launches, which are in path, and writes them to file, if that is not
// "", or a page about them.
func (a *app) showCounters(path, file, program string, gpu *counters.GPU) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	launches := counters.Parse(data)
	sources := sourceFiles(a.Dir)
	text := counters.Report{GPU: gpu, Lines: 10, Source: sources}
	text.Write(a.stderr, launches)
	if file == "" {
		return nil
	}
	var content []byte
	if strings.HasSuffix(file, ".html") {
		var page bytes.Buffer
		counted := report.Counted{Version: Version, Title: program, GPU: gpu, Launches: launches, Source: sources}
		err = counted.HTML(&page)
		content = page.Bytes()
	} else {
		content, err = counters.Lines(launches)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(a.Path(file), content, 0o644)
}

// ended turns the exit status of a program into fisub's. The program has already printed its errors.
func (a *app) ended(program string, err error) error {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		a.term.Error(fmt.Sprintf("%s was ended by a signal: %v", program, status.Signal()), "")
		return shown(128 + int(status.Signal()))
	}
	return shown(exit.ExitCode())
}

// linked rejects a program that contains NVIDIA's runtime, or that needs another version of it than the file name
// runtime. It accepts files other than ELF: a script may start other programs.
func linked(path, runtime string) error {
	f, err := elf.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	needs, err := f.ImportedLibraries()
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(needs, func(name string) bool { return strings.HasPrefix(name, "libcudart.so") })
	switch {
	case i >= 0 && needs[i] != runtime:
		return usage.Errorf("build it with fisub nvcc, or set CUDA_HOME to the toolkit that it was built with",
			"emu: %s needs %s, but the toolchain has %s", path, needs[i], runtime)
	case i < 0 && f.Section(".nv_fatbin") != nil:
		return usage.Errorf("link it with -cudart shared, or build it with fisub nvcc",
			"emu: %s is linked with NVIDIA's static CUDA runtime (-cudart static)", path)
	}
	return nil
}
