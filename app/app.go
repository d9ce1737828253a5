// Package app is the command line: flags, commands, exit statuses and hints. What the commands do lives in the packages
// that it calls; the lists of devices and providers are here.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"fisub/internal/plain"

	"github.com/urfave/cli/v2"

	"fisub/device"
	"fisub/device/cuda"
	"fisub/device/emu"
	"fisub/internal/ui"
)

// Version is what `fisub --version` prints and run.json records.
const Version = "0.1.0"

// commit is what scripts/build built this program from, with -dirty where files had been changed; "" where it built none.
var commit string

// versionText is the version, and the commit where it is known.
func versionText() string {
	if commit == "" {
		return Version
	}
	hash, dirty, changed := strings.Cut(commit, "-")
	text := fmt.Sprintf("%s (%.12s", Version, hash)
	if changed {
		text += "-" + dirty
	}
	return text + ")"
}

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
	if len(args) > 1 && args[1] == "agent" {
		return agentMain(args[2:], stdout, stderr)
	}
	if len(args) > 1 && args[1] == "__complete" {
		return completeMain(args[2:], stdout)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once
	checked := &output{w: stdout}
	stdout = checked
	if f, ok := checked.w.(*os.File); ok {
		stdout = struct {
			*output
			file
		}{checked, f}
	}
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, term: &ui.Terminal{Out: stdout, Err: stderr}}
	program := a.cli()
	err := program.RunContext(ctx, flagsFirst(program, args))
	if ctx.Err() != nil && !a.minds {
		a.term.Error("interrupted", "")
		return exitInterrupted
	}
	status := a.exit(err)
	if err := checked.failed(); status == exitOK && err != nil {
		return a.exit(err)
	}
	return status
}

// An output remembers the first error of writing: not all that prints asks for it, and a result that is lost is no success.
type output struct {
	w   io.Writer
	mu  sync.Mutex
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	return n, err
}

func (o *output) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// A file is what ui asks whether it is a terminal, and how wide.
type file interface{ Fd() uintptr }

// flagsFirst moves the flags of a command in front of its arguments: the flag package takes all behind an argument for
// arguments. What follows "--" stays.
func flagsFirst(program *cli.App, args []string) []string {
	flags, commands := program.Flags, program.Commands
	var first, arguments []string
	rest := args[min(1, len(args)):]
	for len(rest) > 0 {
		word := rest[0]
		rest = rest[1:]
		if word == "--" {
			arguments = append(arguments, rest...)
			return slices.Concat(args[:1], first, []string{"--"}, arguments)
		}
		if strings.HasPrefix(word, "-") && word != "-" {
			first = append(first, word)
			if f := flagNamed(flags, strings.TrimLeft(word, "-")); f != nil && len(rest) > 0 && takesValue(f) {
				first, rest = append(first, rest[0]), rest[1:]
			}
			continue
		}
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(word) })
		if i < 0 || len(arguments) > 0 {
			arguments = append(arguments, word)
			continue
		}
		first = append(first, word)
		flags, commands = commands[i].Flags, commands[i].Subcommands
	}
	return slices.Concat(args[:min(1, len(args))], first, arguments)
}

// flagNamed is the flag of that name, or nil.
func flagNamed(flags []cli.Flag, name string) cli.Flag {
	i := slices.IndexFunc(flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if i < 0 {
		return nil
	}
	return flags[i]
}

type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	term           *ui.Terminal
	minds          bool // the command has taken signals into its own hands
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

// invalid marks err, which is about the user's input, for exit status 2; not where it is that something cannot be written.
func invalid(err error) error {
	if err == nil || unwritten(err) {
		return err
	}
	return &usageError{err: err}
}

// unwritten tells whether err is that a file or folder cannot be written, by what only writing fails with.
func unwritten(err error) bool {
	var file *fs.PathError
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) ||
		errors.As(err, &file) && strings.HasPrefix(file.Op, "mkdir") && errors.Is(err, fs.ErrPermission)
}

// errNotPassed has been shown already: the table says which workloads did not pass.
var errNotPassed = errors.New("not every workload passed")

// errSlower is what compare --fail-on slower ends with; the table says where.
var errSlower = errors.New("run B is slower")

// errShown has been shown already, and means invalid input.
var errShown = errors.New("invalid input")

// errUnreachable has been shown already: a host cannot take a job.
var errUnreachable = errors.New("a host is down")

// errLost has been shown already: no host came to the end of some workloads.
var errLost = errors.New("workloads are lost")

// errInterrupted is a remote run that an interrupt ended or detached; what became of it has been shown.
var errInterrupted = errors.New("interrupted")

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
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, errUnreachable), errors.Is(err, errLost):
		return exitError
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
	if errors.As(err, &u) && error(u) == err && u.hint == "" { //nolint:errorlint // itself, not one that it wraps
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
	commands := []*cli.Command{
		a.initCommand(), a.checkCommand(),
		a.localCommand(), a.remoteCommand(), a.compareCommand(), a.runsCommand(), a.reportCommand(),
		a.packCommand(), a.unpackCommand(), a.submitCommand(),
		a.datasetCommand(),
		a.sanitizeCommand(), a.profileCommand(),
		a.doctorCommand(), a.toolchainCommand(),
		a.helpCommand(), a.completionCommand(), a.manCommand(), a.workerCommand(),
	}
	onUsage := func(_ *cli.Context, err error, _ bool) error { return usage("fisub --help lists the flags", "%w", err) }
	var finish func(cs []*cli.Command)
	finish = func(cs []*cli.Command) {
		for _, c := range cs {
			c.OnUsageError = func(_ *cli.Context, err error, _ bool) error {
				return usage(flagHint(c, err), "%w", err)
			}
			c.HideHelpCommand = true
			if !c.Hidden {
				c.Flags = append(c.Flags, globalFlags()...)
			}
			terse(c.Flags)
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
	flags := append(globalFlags(), cli.HelpFlag) // cli adds it where no command is named help
	terse(flags)
	cli.VersionFlag = &cli.BoolFlag{Name: "version", Usage: "print the version", DisableDefaultText: true} // -v is ours
	app := &cli.App{
		Name:            "fisub",
		Usage:           "check, run, and pack GPU kernel submissions for the FlashInfer kernel contest",
		Description:     pathText(commands) + "\nTopics, for fisub help TOPIC: " + strings.Join(topicNames(), ", ") + ".\n\n" + exitText,
		Version:         versionText(),
		Commands:        commands,
		Flags:           flags,
		Reader:          a.stdin,
		Writer:          a.stdout,
		ErrWriter:       a.stderr,
		HideHelpCommand: true,
		OnUsageError:    onUsage,
		// Main decides on exit statuses: without this an error that has an exit code of its own, such as that of a child
		// process, would end the program with it.
		ExitErrHandler: func(*cli.Context, error) {},
	}
	app.Action = func(c *cli.Context) error {
		if c.NArg() == 0 {
			return greet(c.App.Writer, commands)
		}
		return unknown("command", c.Args().First(), commandNames(commands))
	}
	return app
}

// invalidValue is how the flag package refuses the value of a flag.
var invalidValue = regexp.MustCompile(`^invalid value .* for flag -([^:]+): `)

// flagHint says what the flag takes that err, of the command line, is about; else where to look.
func flagHint(c *cli.Command, err error) string {
	if m := invalidValue.FindStringSubmatch(err.Error()); m != nil {
		switch flagNamed(c.Flags, m[1]).(type) {
		case *cli.DurationFlag:
			return "--" + m[1] + " takes a time with its unit, such as 90s or 5m"
		case *cli.IntFlag:
			return "--" + m[1] + " takes a whole number"
		case *cli.Float64Flag:
			return "--" + m[1] + " takes a number"
		}
	}
	return c.HelpName + " --help lists the flags"
}

// terse keeps "(default: false)" out of the help.
func terse(flags []cli.Flag) {
	for _, f := range flags {
		if b, ok := f.(*cli.BoolFlag); ok {
			b.DisableDefaultText = true
		}
	}
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
	if near := plain.Nearest(word, known); len(near) > 0 {
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

const globalCategory = "Global:"

// globalFlags stand before or after the command's name.
func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "C", Usage: "work in `DIR` as if fisub had been started there", Category: globalCategory},
		&cli.StringFlag{Name: "config", Usage: "read the submission from `FILE`", DefaultText: "config.toml", Category: globalCategory},
		&cli.StringFlag{Name: "dataset", Usage: "take definitions, workloads and blobs from the dataset in `DIR`", DefaultText: "$FIB_DATASET_PATH, else the embedded one", Category: globalCategory},
		&cli.BoolFlag{Name: "json", Usage: "print the result as JSON on stdout", Category: globalCategory},
		&cli.StringFlag{Name: "color", Usage: "use colours `WHEN`: auto, always or never", DefaultText: "auto", Category: globalCategory},
		&cli.BoolFlag{Name: "v", Usage: "print whole logs", Category: globalCategory},
		&cli.BoolFlag{Name: "q", Usage: "print the result and errors only", Category: globalCategory},
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

// setUp applies the global flags. No argument begins with a dash: a flag behind "--" is a mistake.
func (a *app) setUp(c *cli.Context) error {
	for _, arg := range c.Args().Slice() {
		if strings.HasPrefix(arg, "-") && arg != "-" {
			return usage("put flags before --; a file whose name begins with a dash is ./"+arg, "%s: %s stands behind --", c.Command.Name, arg)
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
		return usage(c.Command.HelpName+" --help", "%s: unexpected argument %q", c.Command.Name, c.Args().First())
	}
	return nil
}
