// Package app is the command line: flags, commands, exit statuses and output. A command is one file with a constructor
// for its flags, the options that they fill, and a method that tells the whole story of the command. The rules of a
// domain are in its package. The list of devices is here.
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
)

// Version is what `fisub --version` prints and run.json records.
const Version = "0.1.0"

// commit is what scripts/build built this program from, with -dirty where files had been changed; "" where it built
// none.
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
	exitError       = 1 // fisub could not do it; a workload without a verdict
	exitUsage       = 2 // usage or invalid input, what the machine lacks
	exitNotPassed   = 3 // it ran, and some workload did not pass; compare found a regression
	exitInterrupted = 130
)

// openers are the devices that fisub knows, in the order in which --device auto tries them.
var openers = []device.Opener{cuda.Opener(), vgpu.Opener()}

// An app is one call of fisub.
type app struct {
	project.Project // of the flags -C, --config and --dataset
	json            bool
	final           *outcome.Outcome // of --json=final, else nil
	runID           string           // of the run that --json=final tells of
	hears           event.Sink       // hears of the events of a run too, where a program has made the call
	stdout, stderr  io.Writer
	term            *ui.Terminal
	signals         bool    // the command has taken signals into its own hands
	typed           *typing // what is to be completed, or nil
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

// run does what args say, and gives the exit status. hears, which may be nil, is handed the events of a run.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, hears event.Sink) int {
	stdout, failed := ui.Watch(stdout)
	a := &app{stdout: stdout, stderr: stderr, hears: hears, term: &ui.Terminal{In: stdin, Out: stdout, Err: stderr}}
	a.term.Color = ui.UseColor("auto", stdout) && ui.UseColor("auto", stderr)
	if slices.Contains(args[:cmp.Or(slices.Index(args, "--")+1, len(args))], "--json=final") {
		a.final = new(outcome.Outcome) // of a wrong flag before it too
	}
	program := a.cli()
	sorted, _ := flags.First(program, args)
	a.Version, a.Warn = Version, a.term.Warn
	a.Command = append([]string{"fisub"}, args[min(1, len(args)):]...)
	ctx = cache.Telling(ctx, func(path string) { a.term.Note("waiting for %s, which another process has locked", path) })
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
		if r, err := a.ReadRun(a.runID); err == nil {
			a.final.Of(r)
		}
	}
	return a.final.Write(a.stdout, status)
}

// endSignals are those that end a command in good order: a closed terminal's is one, but not under nohup.
func endSignals() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

// shown is an error of which everything has been said: the exit status is left.
type shown int

func (s shown) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// maxShown bounds the faults of one kind that are printed.
const maxShown = 100

// exit is the one place where errors become exit statuses.
func (a *app) exit(err error) int {
	var status shown
	var wrong *usage.Error
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
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
	if errors.As(err, &wrong) {
		return exitUsage
	}
	return exitError
}

func (a *app) cli() *cli.App {
	if a.term == nil {
		a.term = &ui.Terminal{Out: io.Discard, Err: io.Discard} // who asks for the commands alone
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
	cli.VersionFlag = boolFlag(new(bool), "version", "print the version") // -v is ours
	return &cli.App{
		Name:  "fisub",
		Usage: "check, run, and pack GPU kernel submissions for the FlashInfer kernel contest",
		Description: pathText() + "\nTopics, for fisub help TOPIC: " + strings.Join(topicNames(), ", ") + ".\n\n" +
			exitText,
		Version:         versionText(),
		Commands:        commands,
		Flags:           append(a.globalFlags(), cli.HelpFlag), // cli adds it where no command is named help
		Reader:          a.term.In,
		Writer:          a.stdout,
		ErrWriter:       a.stderr,
		HideHelpCommand: true,
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return flags.Error(a.globalFlags(), "fisub", err)
		},
		// Main decides on exit statuses: without this an error that has an exit code of its own, such as that of a child
		// process, would end the program with it.
		ExitErrHandler:       func(*cli.Context, error) {},
		EnableBashCompletion: true,
		BashComplete:         a.completer(nil),
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				fmt.Fprintf(a.stdout, "fisub takes a GPU kernel submission for the FlashInfer kernel contest from source to "+
					"result.\n\n%s\nfisub help lists all commands and topics, fisub COMMAND --help the flags of one.\n", pathText())
				return nil
			}
			return usage.Unknown("command", c.Args().First(), flags.Commands(commands))
		},
	}
}

// finish gives the commands behind the words before what all of them have: their description, the global flags,
// completion, and their refusals of flags and arguments.
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
			if err := a.ends(words); err != nil {
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

// withFinal are the commands that --json=final is for.
var withFinal = []string{"check", "local", "remote", "remote attach", "compare", "runs show"}

// ends refuses --json=final for the other commands, whose --json is one object, or a list, as it is.
func (a *app) ends(words string) error {
	if a.final == nil || slices.Contains(withFinal, words) {
		return nil
	}
	return usage.Errorf("--json; =final is for "+strings.Join(withFinal, ", "), "%s: it has no --json=final", words)
}

// writeJSON prints the result of a command; with --json=final the outcome has it.
func (a *app) writeJSON(v any) error {
	if a.final != nil {
		return nil
	}
	enc := json.NewEncoder(a.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// result prints the result of a command, as JSON where that is asked for.
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

// line prints a line of a result: what it is about, and what there is to say.
func (a *app) line(what, format string, args ...any) {
	fmt.Fprintln(a.stdout, a.term.Fit(fmt.Sprintf("%-10s  %s", what, plain.Line(fmt.Sprintf(format, args...))), 12))
}

// events shows the events of a run, as a table or as JSON.
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

// also has the program that made the call hear the events that show shows.
func (a *app) also(show event.Sink) event.Sink {
	if a.hears == nil {
		return show
	}
	return func(e event.Event) error { return errors.Join(a.hears(e), show(e)) }
}

// warn shows what was odd about the input without being wrong.
func (a *app) warn(warnings []trace.Warning) {
	for _, w := range warnings {
		hint := ""
		if w.Suggestion != "" {
			hint = fmt.Sprintf("did you mean %q?", w.Suggestion)
		}
		a.term.Warn(w.String(), hint)
	}
}

// load reads the submission: the packed solution, or, where that is "", the config and its sources.
func (a *app) load(packed string) (*project.Submission, error) {
	s, err := a.Load(packed)
	if err == nil {
		a.warn(s.Warnings)
		a.term.Places = s.Places
	}
	return s, err
}
