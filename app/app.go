// Package app is the command line: flags, commands, exit statuses and output. Each command has one file: a constructor
// for its flags, its options, and a method that contains the whole command. Domain rules are in other packages. The
// list of devices is here.
package app

import (
	"cmp"
	"context"
	"encoding/json"
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

	"fisub/app/flags"
	"fisub/app/outcome"
	"fisub/device"
	"fisub/device/cuda"
	"fisub/device/vgpu"
	"fisub/internal/cache"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/project"
	"fisub/workloads"
)

// Version is printed by `fisub --version` and recorded in run.json.
const Version = "0.1.0"

// commit is the commit that scripts/build built this program from, with the suffix -dirty if files had changed. It is
// "" in other builds.
var commit string

// versionText returns the version, with the commit if it is known.
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
	exitError       = 1 // fisub failed, or a workload has no verdict
	exitUsage       = 2 // wrong usage, invalid input, or something missing on this machine
	exitNotPassed   = 3 // a workload did not pass, or compare found a regression
	exitInterrupted = 130
)

// openers lists the devices in the order in which --device auto tries them.
var openers = []device.Opener{cuda.Opener(), vgpu.Opener()}

// An app is one invocation of fisub.
type app struct {
	project.Project // set by the flags -C, --config and --dataset
	json            bool
	final           *outcome.Outcome // object of --json=final; nil without it
	runID           string           // run that --json=final describes
	listener        event.Sink       // also receives the events of a run if a program made the call; else nil
	stdout, stderr  io.Writer
	term            *ui.Terminal
	pause           ui.Pause // of the output of a remote run, by a question
	signals         bool     // the command handles signals itself
	typed           *typing  // line to complete, or nil
}

// Main runs the program and returns its exit status.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) > 1 && args[1] == "agent" {
		return agentMain(args[2:], stdout, stderr)
	}
	if n := len(args); n > 1 && args[n-1] == completeFlag {
		return completeMain(args[1:n-1], stdout)
	}
	ctx, stop := signal.NotifyContext(context.Background(), endSignals()...)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once
	return run(ctx, args, stdin, stdout, stderr, nil)
}

// run executes args and returns the exit status. listener may be nil; it also receives the events of a run.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, listener event.Sink) int {
	stdout, failed := ui.Watch(stdout)
	a := &app{stdout: stdout, stderr: stderr, listener: listener, term: &ui.Terminal{In: stdin, Out: stdout, Err: stderr}}
	a.term.Color = ui.UseColor("auto", stdout) && ui.UseColor("auto", stderr)
	if slices.Contains(args[:cmp.Or(slices.Index(args, "--")+1, len(args))], "--json=final") {
		a.final = new(outcome.Outcome) // also for errors in earlier flags
	}
	program := a.cli()
	sorted, _ := flags.First(program, args)
	a.Version, a.Warn = Version, a.term.Warn
	a.Command = append([]string{"fisub"}, args[min(1, len(args)):]...)
	ctx = cache.Telling(ctx, func(path string) { a.term.Note("waiting for %s, locked by another process", path) })
	err := program.RunContext(ctx, sorted)
	status := exitInterrupted
	if ctx.Err() != nil && !a.signals {
		a.term.Error("interrupted", "")
	} else {
		status = a.exit(err)
	}
	if err := a.end(status); status == exitOK && cmp.Or(err, failed()) != nil {
		return a.exit(cmp.Or(err, failed()))
	}
	return status
}

// end prints the object of --json=final.
func (a *app) end(status int) error {
	if a.final == nil {
		return nil
	}
	if a.runID != "" {
		if r, err := a.readRun(a.runID); err == nil {
			a.final.Of(r, a.inContest)
		}
	}
	if a.final.Status != "planned" { // that line has the flags already
		a.final.Next = a.located(a.final.Next)
	}
	return a.final.Write(a.stdout, status)
}

// located adds the flags that choose the project to the commands of fisub and git in line.
func (a *app) located(line string) string {
	git, here := "", ""
	if a.Dir != "" {
		here = " -C " + plain.Word(a.Dir)
		git = here
	}
	if a.Config != "" {
		here += " --config " + plain.Word(a.Config)
		git = " -C " + plain.Word(a.Root())
	}
	if a.Dataset != "" {
		here += " --dataset " + plain.Word(a.Dataset)
	}
	commands := strings.Split(line, " && ")
	for i, c := range commands {
		if rest, ok := strings.CutPrefix(c, "fisub "); ok {
			commands[i] = "fisub" + here + " " + rest
		} else if rest, ok := strings.CutPrefix(c, "git "); ok {
			commands[i] = "git" + git + " " + rest
		}
	}
	return strings.Join(commands, " && ")
}

// commandLine returns words as a line for a shell, without the words in omit.
func commandLine(words []string, omit ...string) string {
	var line []string
	for _, w := range words {
		if !slices.Contains(omit, w) {
			line = append(line, plain.Word(w))
		}
	}
	return strings.Join(line, " ")
}

// openContest is OpenDataset for commands that a task of GPU MODE or KernelBench does not have.
func (a *app) openContest() (*workloads.Dataset, error) {
	if t, _ := a.Task(); t != nil {
		return nil, usage.Errorf("send "+filepath.Base(t.Answer)+" as it is",
			"%s is a task with its own judge, not a project of the contest", plain.Relative(t.File))
	}
	return a.OpenDataset()
}

// inContest reports whether a definition has the contest's workload set.
func (a *app) inContest(definition string) bool {
	data, err := a.OpenDataset()
	if err != nil {
		return false
	}
	ws, err := data.Workloads(definition, workloads.ContestSet)
	return err == nil && len(ws) > 0
}

// endSignals returns the signals that end a command cleanly. It includes SIGHUP, unless that is ignored as under
// nohup.
func endSignals() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

// shown is an error that has already been printed. Only its exit status remains.
type shown int

func (s shown) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// maxShown limits how many faults of one kind are printed.
const maxShown = 100

// exit is the only place that turns errors into exit statuses.
func (a *app) exit(err error) int {
	if err == nil {
		return exitOK
	} else if status, ok := errors.AsType[shown](err); ok {
		return int(status)
	}
	all := usage.Flatten(err)
	for i, one := range all {
		if i == maxShown {
			a.term.Error(plain.Count(len(all)-i, "more error"), "")
			break
		}
		text, hint := usage.Explain(one)
		a.term.Error(text, hint)
		if a.final != nil {
			a.final.Errors = append(a.final.Errors, outcome.Message{Text: text, Hint: hint})
		}
	}
	if _, wrong := errors.AsType[*usage.Error](err); wrong {
		return exitUsage
	}
	return exitError
}

func (a *app) cli() *cli.App {
	if a.term == nil {
		a.term = &ui.Terminal{Out: io.Discard, Err: io.Discard} // for callers that only need the list of commands
	}
	commands := []*cli.Command{
		a.initCommand(), a.checkCommand(),
		a.localCommand(), a.remoteCommand(), a.compareCommand(), a.runsCommand(), a.reportCommand(),
		a.packCommand(), a.unpackCommand(), a.submitCommand(),
		a.datasetCommand(),
		a.sanitizeCommand(), a.profileCommand(),
		a.emuCommand(), a.nvccCommand(),
		a.doctorCommand(), a.toolchainCommand(), a.mcpCommand(),
		a.helpCommand(), a.completionCommand(), a.workerCommand(),
	}
	a.finish(commands, "")
	cli.VersionFlag = boolFlag(new(bool), "version", "print the version") // -v means verbose
	return &cli.App{
		Name:  "fisub",
		Usage: "check, run, and pack GPU kernel submissions for the FlashInfer kernel contest",
		Description: pathText() + "\nTopics, for fisub help TOPIC: " + strings.Join(topicNames(), ", ") + ".\n\n" +
			exitText,
		Version:         versionText(),
		Commands:        commands,
		Flags:           append(a.globalFlags(), cli.HelpFlag), // cli adds it only if a command is named help
		Reader:          a.term.In,
		Writer:          a.stdout,
		ErrWriter:       a.stderr,
		HideHelpCommand: true,
		Before:          func(c *cli.Context) error { return a.helpOfHelp(c.App.Commands, c.Args().Slice()) },
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return flags.Error(a.globalFlags(), "fisub", err)
		},
		// Main decides on exit statuses. Without this hook an error with an exit code of its own, such as a child
		// process's, would end the program with that code.
		ExitErrHandler:       func(*cli.Context, error) {},
		EnableBashCompletion: true,
		BashComplete:         a.completer(nil),
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				fmt.Fprintf(a.stdout, "fisub takes a GPU kernel submission for the FlashInfer kernel contest from source to "+
					"result.\n\n%s\nfisub help lists all commands and topics; fisub COMMAND --help lists the flags of a "+
					"command.\n", pathText())
				return nil
			}
			return usage.Unknown("command", c.Args().First(), flags.Commands(commands))
		},
	}
}

// finish adds to the commands below the words before: description, global flags, completion, and checks of flags and
// arguments.
func (a *app) finish(commands []*cli.Command, before string) {
	for _, c := range commands {
		words := before + c.Name
		c.Description = cmp.Or(c.Description, descriptions()[words])
		c.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return flags.Error(c.Flags, c.HelpName, err) }
		c.HideHelpCommand = true
		c.BashComplete = a.completer(c)
		if !c.Hidden && !c.SkipFlagParsing {
			c.Flags = append(c.Flags, a.globalFlags()...)
		}
		action := c.Action
		if action == nil {
			action = func(*cli.Context) error {
				return usage.Errorf("one of "+strings.Join(flags.Commands(c.Subcommands), ", "), "%s: no command given", words)
			}
		}
		checked := flags.Checked(c, func(ctx *cli.Context) error {
			if err := a.checkFinal(words); err != nil {
				return err
			}
			return action(ctx)
		})
		c.Action = func(ctx *cli.Context) error {
			if a.final != nil {
				a.final.Command = words
			}
			return checked(ctx)
		}
		a.finish(c.Subcommands, words+" ")
	}
}

// withFinal lists the commands that support --json=final.
var withFinal = []string{"check", "local", "remote", "remote attach", "compare", "runs show", "sanitize", "profile",
	"pack", "submit"}

// checkFinal rejects --json=final for other commands. Their --json already prints a single object or list.
func (a *app) checkFinal(words string) error {
	if a.final == nil || slices.Contains(withFinal, words) {
		return nil
	}
	return usage.Errorf("use --json; --json=final works with "+strings.Join(withFinal, ", "),
		"%s does not support --json=final", words)
}

// writeJSON prints the result of a command. With --json=final it prints nothing: the outcome holds the result.
func (a *app) writeJSON(v any) error {
	if a.final != nil {
		return nil
	}
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// result prints the result of a command, as JSON if --json is set.
func (a *app) result(v interface{ Text() string }) error {
	if a.json {
		return a.writeJSON(v)
	}
	text := v.Text()
	if _, code := v.(*emitted); !code {
		text = a.term.Fit(text, 12)
	}
	_, err := io.WriteString(a.stdout, text)
	return err
}

func (a *app) line(what, format string, args ...any) {
	fmt.Fprintln(a.stdout, a.term.Fit(fmt.Sprintf("%-10s  %s", what, plain.Line(fmt.Sprintf(format, args...))), 12))
}

// events returns a sink that shows the events of a run, as a table or as JSON.
func (a *app) events() event.Sink {
	switch {
	case a.final != nil:
		return a.also(func(e event.Event) error {
			if e.Run != nil {
				a.runID = e.Run.ID
			}
			return nil
		})
	case !a.json:
		return a.also(a.term.Run())
	}
	return a.also(func(e event.Event) error {
		line, err := event.Marshal(e)
		if err == nil {
			_, err = a.stdout.Write(line)
		}
		return err
	})
}

// also adds the calling program's sink to show, if there is one.
func (a *app) also(show event.Sink) event.Sink {
	if a.listener == nil {
		return show
	}
	return func(e event.Event) error { return errors.Join(a.listener(e), show(e)) }
}

func (a *app) warn(warnings []trace.Warning) {
	for _, w := range warnings {
		hint := ""
		if w.Suggestion != "" {
			hint = fmt.Sprintf("did you mean %q?", w.Suggestion)
		}
		a.term.Warn(w.String(), hint)
	}
}

// load reads the submission: the packed solution, or, if that is "", the config and its sources.
func (a *app) load(packed string) (*project.Submission, error) {
	s, err := a.Load(packed)
	if err == nil {
		a.warn(s.Warnings)
		if s.Config != nil {
			for _, f := range s.Config.Warnings {
				a.term.Warn(usage.Explain(f))
			}
		}
		a.term.Locate = s.Places
	}
	return s, err
}
