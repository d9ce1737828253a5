package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/cuda"
	"fisub/doctor"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/safetensors"
)

func (a *app) doctorCommand() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "say what this machine can do, and what is missing for which command",
		Description: "Looks at compilers, driver, GPUs, clocks, tools, Python and its packages, the dataset, config.toml, the hosts of\n" +
			"[remote.NAME], and disks: a line for each, with the command that mends what is missing. It installs and measures\n" +
			"nothing. Exit status 0, whatever is missing, but 1 where --require names it.\n\n" +
			"   fisub doctor\n" +
			"   fisub doctor --no-remote\n" +
			"   fisub doctor --require compiler,git\n" +
			"   fisub doctor --require cuda,cupti,remote.lab",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "no-remote", Usage: "do not ask the hosts of [remote.NAME]"},
			&cli.StringFlag{Name: "require", Usage: "exit with 1 if one of `NAME[,NAME...]` is missing: the names in the second column; cuda is all that a run on a GPU takes"},
		},
		Action: a.doctor,
	}
}

func (a *app) doctor(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	o := doctor.Options{Version: Version, Built: cuda.Built, Folder: runsRoot(c), Tool: findTool,
		Mend: func(err error) string { _, hint := explain(err); return hint }}
	o.Cache, o.CacheErr = cache.Root()
	o.OpenGPU = func(ctx context.Context) (device.Info, error) {
		client, err := worker.Start(ctx, worker.Command{Args: []string{self, "worker"}})
		if err != nil {
			return device.Info{}, err
		}
		defer client.Close()
		return client.Open(ctx, "cuda", device.Options{CacheDir: o.Cache})
	}
	o.Dataset = func(ctx context.Context) doctor.Line { return datasetLine(ctx, c) }
	o.Config = func(context.Context) doctor.Line { return configLine(c) }
	if !c.Bool("no-remote") {
		if ts, err := tables(c); err == nil { // a broken config has its own line
			o.Remotes = map[string]func(context.Context) []doctor.Line{}
			for name := range ts {
				o.Remotes[name] = func(ctx context.Context) []doctor.Line { return remoteLines(ctx, ts, name) }
			}
		}
	}
	r := doctor.Examine(c.Context, o)
	if err := c.Context.Err(); err != nil {
		return err
	}
	var required []string
	if list := c.String("require"); list != "" {
		if required, err = r.Require(strings.Split(list, ",")); err != nil {
			return usage("one of "+strings.Join(r.Names(), ", "), "--require: %w", err)
		}
	}
	if globalBool(c, "json") {
		err = writeJSON(a.stdout, struct {
			*doctor.Report
			Required []string `json:"required_and_missing,omitempty"`
		}{r, required})
	} else {
		err = a.showMachine(r)
	}
	if err == nil && len(required) > 0 {
		return fmt.Errorf("missing: %s", list(required, "and"))
	}
	return err
}

func (a *app) showMachine(r *doctor.Report) error {
	width := 0
	for _, l := range r.Lines {
		width = max(width, len(plain.Line(l.Name)))
	}
	news := map[doctor.State]int{doctor.OK: 1, doctor.Missing: -1}
	for _, l := range r.Lines {
		text := fmt.Sprintf("%-*s  %s", width, plain.Line(l.Name), joinLines(l.Fact))
		if len(l.Needed) > 0 {
			text += "; needed by " + strings.Join(l.Needed, "; ")
		}
		if l.Mend != "" {
			text += "; mend: " + joinLines(l.Mend)
		}
		if _, err := fmt.Fprintf(a.stdout, "%s%s  %s\n", a.term.News(news[l.State], string(l.State)), strings.Repeat(" ", len("missing")-len(l.State)), text); err != nil {
			return err
		}
	}
	fmt.Fprintln(a.stdout)
	for _, u := range r.Uses {
		word, text := "can", u.Command
		if !u.OK {
			word, text = "cannot", u.Command+": "+strings.Join(u.Lacks, ", ")
		}
		if _, err := fmt.Fprintf(a.stdout, "%-7s  %s\n", word, text); err != nil {
			return err
		}
	}
	return nil
}

// joinLines puts a text of some lines on one.
func joinLines(text string) string {
	return plain.Line(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), "; "))
}

func configLine(c *cli.Context) doctor.Line {
	file := configPath(c)
	cfg, err := config.Load(file)
	if err == nil {
		return doctor.Line{Name: "config", State: doctor.OK, Fact: fmt.Sprintf("%s: %s, %s", relative(file), cfg.Solution.Name, cfg.Solution.Definition)}
	}
	l := doctor.Line{Name: "config", State: doctor.Missing, Fact: err.Error() + "; every command about a submission needs it", Mend: "fisub check says what is wrong with it"}
	if errors.Is(err, fs.ErrNotExist) {
		l.Mend = "go to the folder of the submission, or name it: -C DIR"
	}
	return l
}

// datasetLine tells what there is of the dataset and its input files.
func datasetLine(ctx context.Context, c *cli.Context) doctor.Line {
	l := doctor.Line{Name: "dataset", State: doctor.OK}
	bad := func(err error) doctor.Line {
		_, hint := explain(err)
		l.State, l.Fact = doctor.Missing, err.Error()
		l.Mend = cmp.Or(hint, "--dataset DIR or FIB_DATASET_PATH names one; without them the embedded one is taken")
		return l
	}
	data, err := openDataset(c)
	if err != nil {
		return bad(err)
	}
	var sets, total, absent, pointers, missing, faults int
	pointer := ""
	for _, name := range data.Definitions() {
		def, err := data.Definition(name)
		if err != nil {
			return bad(err)
		}
		names, err := data.Sets(name)
		if err != nil {
			return bad(err)
		}
		for _, set := range names {
			ws, err := data.Workloads(name, set)
			if err != nil {
				return bad(err)
			}
			reports, err := data.Verify(ctx, def, ws)
			if err != nil {
				l.State, l.Fact, l.Mend = doctor.Warn, data.Root()+": looking at its input files takes too long", "fisub dataset verify takes the time"
				return l
			}
			sets++
			for _, r := range reports {
				total++
				absent += r.Absent
				for _, f := range r.Faults {
					var lfs *safetensors.LFSPointerError
					switch {
					case errors.As(f, &lfs):
						pointers++
						pointer = lfs.Path
					case errors.Is(f, fs.ErrNotExist):
						missing++
					default:
						faults++
					}
				}
			}
		}
	}
	where := data.Root()
	if data.Embedded() {
		where = "embedded"
	}
	l.Fact = fmt.Sprintf("%s: %d definitions, %d workloads in %d sets", where, len(data.Definitions()), total, sets)
	if absent > 0 {
		l.Fact += fmt.Sprintf(", %d input files are made when they are needed", absent)
	}
	for _, f := range []struct {
		n          int
		what, mend string
	}{
		{faults, "faults", "fisub dataset verify names them"},
		{missing, "input files missing", "fisub dataset synth makes them, or fetch them: git lfs pull"},
		{pointers, "input files are Git LFS pointers", "fetch them: " + lfsCommand(pointer)},
	} {
		if f.n > 0 {
			l.State, l.Mend = doctor.Warn, f.mend
			l.Fact += fmt.Sprintf(", %d %s", f.n, f.what)
		}
	}
	if len(data.Definitions()) == 0 {
		return bad(fmt.Errorf("%s: no definitions below %s", data.Root(), filepath.Join(data.Root(), "definitions")))
	}
	return l
}

// remoteLines asks the hosts of one table.
func remoteLines(ctx context.Context, ts map[string]*config.Table, name string) []doctor.Line {
	l := doctor.Line{Name: "remote." + name, State: doctor.OK}
	bad := func(l doctor.Line, err error) doctor.Line {
		l.State = doctor.Missing
		l.Fact, l.Mend = explain(err)
		if config.Faults(err) != nil {
			l.Fact = err.Error()
			l.Mend = cmp.Or(l.Mend, "docs/remote.md has the keys of such a table")
		}
		if ctx.Err() != nil {
			l.Fact = "no answer in time"
		}
		if l.Mend == "" {
			l.Mend = "fisub remote hosts --on " + name + " asks again"
		}
		return l
	}
	p, common, err := openProvider(ts, name)
	if err != nil {
		return []doctor.Line{bad(l, err)}
	}
	defer p.Close()
	hosts, err := p.Check(ctx)
	if err != nil {
		return []doctor.Line{bad(l, err)}
	}
	var lines []doctor.Line
	for _, h := range hosts {
		host := l
		if len(hosts) > 1 {
			host.Name += "." + h.Name
		}
		if h.Err != nil {
			lines = append(lines, bad(host, h.Err))
			continue
		}
		host.Fact = strings.TrimSuffix(fmt.Sprintf("%s, %s: %s, %s", common.Provider, h.Name, h.State, h.Detail), ", ")
		if h.State == "down" || h.State == "busy" {
			host.State = doctor.Warn
		}
		lines = append(lines, host)
	}
	if len(lines) == 0 {
		return []doctor.Line{bad(l, errors.New("it names no host"))}
	}
	return lines
}
