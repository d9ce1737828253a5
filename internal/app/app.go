// Package app is the command line: flags, commands, exit statuses and hints. What the commands do lives in the packages
// that it calls; the lists of devices and providers are here.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"fisub/device"
	"fisub/device/cuda"
	"fisub/device/emu"
	"fisub/internal/trace"
	"fisub/internal/ui"
)

// Version is what `fisub --version` prints and run.json records.
const Version = "0.1.0"

// Exit statuses.
const (
	exitOK          = 0
	exitError       = 1 // fisub could not do it
	exitUsage       = 2 // usage or invalid input
	exitNotPassed   = 3 // it ran, and some workload did not pass; compare found a regression
	exitInterrupted = 130
)

// openers are the devices that fisub knows, in the order in which --device auto tries them.
var openers = []device.Opener{cuda.Opener(), emu.Opener()}

// Main runs the program and returns its exit status.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, term: &ui.Terminal{Out: stdout, Err: stderr}}
	err := a.cli().RunContext(ctx, args)
	if ctx.Err() != nil {
		a.term.Error("interrupted", "")
		return exitInterrupted
	}
	return a.exit(err)
}

type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	term           *ui.Terminal
}

// A usageError is about the command line or what it names: exit status 2.
type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usage(hint, format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...), hint: hint}
}

// invalid marks err, which is about the user's input, for exit status 2.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err: err}
}

// errNotPassed has been shown already: the table says which workloads did not pass.
var errNotPassed = errors.New("not every workload passed")

// errSlower is what compare --fail-on slower ends with; the table says where.
var errSlower = errors.New("run B is slower")

// errShown has been shown already, and means invalid input.
var errShown = errors.New("invalid input")

// exit is the one place where errors become exit statuses.
func (a *app) exit(err error) int {
	var u *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errNotPassed), errors.Is(err, errSlower):
		return exitNotPassed
	case errors.Is(err, errShown):
		return exitUsage
	}
	for _, one := range flatten(err) {
		text, hint := explain(one)
		a.term.Error(text, hint)
	}
	if errors.As(err, &u) {
		return exitUsage
	}
	return exitError
}

// flatten gives the single errors of a joined one.
func flatten(err error) []error {
	var u *usageError
	if errors.As(err, &u) && u == err && u.hint == "" {
		return flatten(u.err)
	}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	return []error{err}
}

func (a *app) cli() *cli.App {
	commands := []*cli.Command{a.checkCommand(), a.localCommand(), a.packCommand(), a.unpackCommand(), a.datasetCommand(),
		a.compareCommand(), a.runsCommand(), a.sanitizeCommand(), a.profileCommand(), a.toolchainCommand(), a.workerCommand()}
	onUsage := func(_ *cli.Context, err error, _ bool) error { return usage("fisub --help lists the flags", "%w", err) }
	var finish func(cs []*cli.Command)
	finish = func(cs []*cli.Command) {
		for _, c := range cs {
			c.OnUsageError = func(_ *cli.Context, err error, _ bool) error {
				return usage("fisub "+c.Name+" --help lists the flags", "%w", err)
			}
			c.HideHelpCommand = true
			if !c.Hidden {
				c.Flags = append(c.Flags, globalFlags()...)
			}
			if action := c.Action; action != nil {
				c.Action = func(ctx *cli.Context) error {
					if err := a.setUp(ctx); err != nil {
						return err
					}
					return action(ctx)
				}
			} else {
				c.Action = unknownCommand(c)
			}
			finish(c.Subcommands)
		}
	}
	finish(commands)
	cli.VersionFlag = &cli.BoolFlag{Name: "version", Usage: "print the version", DisableDefaultText: true} // -v is ours
	app := &cli.App{
		Name:  "fisub",
		Usage: "check, run, and pack GPU kernel submissions for the FlashInfer kernel contest",
		Description: "fisub check    is this submission sound? no GPU needed\n" +
			"fisub local    run its workloads here: on the GPU, or on an emulation of it\n" +
			"fisub pack     write solution.json as the contest's packer does\n" +
			"fisub compare  is one run faster than another?\n\n" +
			"Exit status: 0 done and all passed; 1 fisub could not do it; 2 usage or invalid input;\n" +
			"3 it ran, and some workload did not pass, or compare found B slower; 130 interrupted.",
		Version:              Version,
		Commands:             commands,
		Flags:                globalFlags(),
		Reader:               a.stdin,
		Writer:               a.stdout,
		ErrWriter:            a.stderr,
		HideHelpCommand:      true,
		EnableBashCompletion: true,
		OnUsageError:         onUsage,
		// Main decides on exit statuses: without this an error that has an exit code of its own, such as that of a child
		// process, would end the program with it.
		ExitErrHandler: func(*cli.Context, error) {},
	}
	app.Action = func(c *cli.Context) error {
		if c.NArg() == 0 {
			return cli.ShowAppHelp(c)
		}
		return unknown("command", c.Args().First(), commandNames(commands))
	}
	return app
}

func unknownCommand(parent *cli.Command) cli.ActionFunc {
	return func(c *cli.Context) error {
		if c.NArg() == 0 {
			return usage("one of "+strings.Join(commandNames(parent.Subcommands), ", "), "%s: no command given", parent.Name)
		}
		return unknown(parent.Name+" command", c.Args().First(), commandNames(parent.Subcommands))
	}
}

func unknown(what, word string, known []string) error {
	if near := trace.Nearest(word, known); len(near) > 0 {
		return usage("did you mean "+strings.Join(near, " or ")+"?", "unknown %s %q", what, word)
	}
	return usage("one of "+strings.Join(known, ", "), "unknown %s %q", what, word)
}

func commandNames(commands []*cli.Command) []string {
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return names
}

// globalFlags stand before or after the command's name.
func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "C", Usage: "work in `DIR` as if fisub had been started there", Category: "Global:"},
		&cli.StringFlag{Name: "config", Usage: "read the submission from `FILE`", DefaultText: "config.toml", Category: "Global:"},
		&cli.StringFlag{Name: "dataset", Usage: "take definitions, workloads and blobs from the dataset in `DIR`", DefaultText: "$FIB_DATASET_PATH, else the embedded one", Category: "Global:"},
		&cli.BoolFlag{Name: "json", Usage: "print the result as JSON on stdout", Category: "Global:"},
		&cli.StringFlag{Name: "color", Usage: "`auto`, always or never", DefaultText: "auto", Category: "Global:"},
		&cli.BoolFlag{Name: "v", Usage: "print whole logs", Category: "Global:"},
		&cli.BoolFlag{Name: "q", Usage: "print the result and errors only", Category: "Global:"},
	}
}

// global finds a flag in the innermost command where it was given.
func global(c *cli.Context, name string) *cli.Context {
	for _, ctx := range c.Lineage() {
		if ctx.Command != nil && slices.Contains(ctx.LocalFlagNames(), name) {
			return ctx
		}
	}
	return nil
}

func globalString(c *cli.Context, name string) string {
	if ctx := global(c, name); ctx != nil {
		return ctx.String(name)
	}
	return ""
}

func globalBool(c *cli.Context, name string) bool {
	ctx := global(c, name)
	return ctx != nil && ctx.Bool(name)
}

// setUp applies the global flags. Flags behind an argument would be taken for arguments, silently: they are refused.
func (a *app) setUp(c *cli.Context) error {
	for _, arg := range c.Args().Slice() {
		if strings.HasPrefix(arg, "-") && arg != "-" {
			return usage("put flags before the arguments", "%s: flag %s stands behind an argument", c.Command.Name, arg)
		}
	}
	mode := globalString(c, "color")
	switch mode {
	case "", "auto", "always", "never":
	default:
		return usage("one of auto, always, never", "--color: unknown mode %q", mode)
	}
	a.term.Color = ui.UseColor(mode, a.stderr) && (mode == "always" || ui.UseColor(mode, a.stdout))
	a.term.Verbose, a.term.Quiet = globalBool(c, "v"), globalBool(c, "q")
	a.term.Wide = a.term.Verbose
	if dir := globalString(c, "C"); dir != "" {
		if st, err := os.Stat(dir); err != nil {
			return invalid(fmt.Errorf("-C: %w", err))
		} else if !st.IsDir() {
			return usage("", "-C %s: not a folder", dir)
		}
	}
	return nil
}

// path makes name relative to -C.
func path(c *cli.Context, name string) string {
	dir := globalString(c, "C")
	if dir == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// noArgs refuses arguments where a command takes none.
func noArgs(c *cli.Context) error {
	if c.NArg() > 0 {
		return usage("fisub "+c.Command.Name+" --help", "%s: unexpected argument %q", c.Command.Name, c.Args().First())
	}
	return nil
}
