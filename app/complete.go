package app

import (
	"bytes"
	"embed"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/app/flags"
	"fisub/device"
	"fisub/docs"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/remote/bundle"
	"fisub/scaffold"
	"fisub/session"
	"fisub/session/tools"
)

// The scripts teach a shell to ask fisub itself.
//
//go:embed completion/*
var completionScripts embed.FS

var shells = []string{"bash", "zsh", "fish"}

func (a *app) completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print the script that makes a shell complete fisub's commands, flags and values",
		ArgsUsage: strings.Join(shells, "|"),
		Action: func(c *cli.Context) error {
			if !slices.Contains(shells, c.Args().First()) {
				return usage.Unknown("shell", c.Args().First(), shells)
			}
			script, err := completionScripts.ReadFile("completion/" + c.Args().First())
			if err == nil {
				_, err = a.stdout.Write(script)
			}
			return err
		},
	}
}

// completeFlag is the last word where a shell asks: those before it are what was typed, the last of them the one to
// complete.
const completeFlag = "--generate-bash-completion"

// completionTime is what completing may take: whoever types waits for it.
const completionTime = time.Second

// A typing is a line whose last word is to be completed.
type typing struct {
	word    string   // as far as it is typed
	pending cli.Flag // the flag whose value it is, or nil
}

// completeMain prints candidates for the last of the words, each with a tab and a few words about it, and as the last
// line ":files" or ":folders" where those of the shell are candidates too. It prints nothing else, whatever is wrong
// with the project.
func completeMain(words []string, stdout io.Writer) int {
	done := make(chan []byte, 1)
	go func() {
		var out bytes.Buffer
		defer func() {
			_ = recover()
			done <- out.Bytes()
		}()
		a := &app{stdout: &out, stderr: io.Discard, term: &ui.Terminal{Out: io.Discard, Err: io.Discard}, typed: &typing{}}
		if n := len(words); n > 0 {
			a.typed.word, words = words[n-1], words[:n-1]
		}
		program := a.cli()
		sorted, pending := flags.First(program, append([]string{program.Name}, words...))
		if a.typed.pending = pending; pending != nil {
			sorted = slices.DeleteFunc(sorted, func(word string) bool { return word == words[len(words)-1] })
		}
		if !slices.Contains(words, "--") {
			_ = program.Run(append(sorted, completeFlag))
		}
	}()
	select {
	case text := <-done:
		_, _ = stdout.Write(text)
	case <-time.After(completionTime):
	}
	return exitOK
}

// completer is the hook that the flag package calls where the line that is typed is of the command c, nil for the
// program itself.
func (a *app) completer(c *cli.Command) cli.BashCompleteFunc {
	return func(ctx *cli.Context) {
		l := &line{app: a, command: c, args: ctx.Args().Slice(), flags: ctx.App.Flags, below: ctx.App.Commands,
			given: map[string]string{}}
		if c != nil {
			l.flags, l.below = c.Flags, c.Subcommands
		}
		lineage := ctx.Lineage()
		for _, at := range slices.Backward(lineage) {
			if at.Command == nil {
				continue
			}
			for _, f := range at.Command.Flags {
				if name := f.Names()[0]; at.IsSet(name) {
					l.given[name] = at.String(name)
					if act, ok := f.(cli.ActionableFlag); ok {
						_ = act.RunAction(at)
					}
				}
			}
		}
		l.print(a.stdout)
	}
}

// A line is what stands before the word to complete.
type line struct {
	*app
	command *cli.Command // nil: the program itself
	flags   []cli.Flag
	below   []*cli.Command
	args    []string
	given   map[string]string // flags that are set, with the value of those that take text
}

func (l *line) print(w io.Writer) {
	found, kind, prefix := l.candidates(l.typed.word)
	for _, c := range found {
		if strings.HasPrefix(prefix+c.Word, l.typed.word) {
			fmt.Fprintf(w, "%s\t%s\n", plain.Line(prefix+c.Word), plain.Line(c.What))
		}
	}
	if kind != "" {
		fmt.Fprintln(w, kind)
	}
}

// candidates gives what may stand in place of word, behind prefix, which is a part of it.
func (l *line) candidates(word string) (found []session.Value, kind, prefix string) {
	name, value, whole := strings.Cut(word, "=")
	switch {
	case l.typed.pending != nil:
		return l.valuesOf(l.typed.pending, word, "")
	case whole && strings.HasPrefix(word, "-"):
		if f := flags.Named(l.flags, strings.TrimLeft(name, "-")); f != nil {
			return l.valuesOf(f, value, name+"=")
		}
		return nil, "", ""
	case strings.HasPrefix(word, "-"):
		return l.flagNames(), "", ""
	}
	if len(l.args) == 0 {
		found = commandCandidates(l.below)
	}
	if l.command != nil {
		words := strings.Fields(l.command.ArgsUsage)
		if n := min(len(l.args), len(words)-1); n >= 0 && (n == len(l.args) || strings.Contains(words[n], "...")) {
			values, kind := l.values(strings.Trim(words[n], "[]."))
			return append(found, values...), kind, ""
		}
	}
	return found, "", ""
}

func (l *line) flagNames() (found []session.Value) {
	for _, f := range l.flags {
		v, ok := f.(cli.VisibleFlag)
		_, set := l.given[f.Names()[0]]
		if _, again := f.(*cli.StringSliceFlag); ok && !v.IsVisible() || set && !again {
			continue
		}
		for _, name := range f.Names() {
			dashes := "--"
			if len(name) == 1 {
				dashes = "-"
			}
			found = append(found, session.Value{Word: dashes + name,
				What: strings.ReplaceAll(f.(cli.DocGenerationFlag).GetUsage(), "`", "")})
		}
	}
	return found
}

func commandCandidates(commands []*cli.Command) (found []session.Value) {
	for _, c := range commands {
		if !c.Hidden {
			found = append(found, session.Value{Word: c.Name, What: c.Usage})
		}
	}
	return found
}

// valueName is how the help calls the value of a flag.
func valueName(f cli.Flag) string {
	parts := strings.SplitN(f.(cli.DocGenerationFlag).GetUsage(), "`", 3)
	if len(parts) < 3 {
		return ""
	}
	return parts[1]
}

// valuesOf gives the values of a flag. Those of a list, "TABLE[,TABLE...]", are completed one by one.
func (l *line) valuesOf(f cli.Flag, word, prefix string) (found []session.Value, kind, before string) {
	name, _, list := strings.Cut(valueName(f), "[")
	if i := strings.LastIndexByte(word, ','); list && i >= 0 {
		prefix += word[:i+1]
	}
	found, kind = l.values(name)
	return found, kind, prefix
}

// values gives what may be given where the help says name, of a flag or an argument. kind is ":files" or ":folders"
// where those may be given too.
func (l *line) values(name string) (found []session.Value, kind string) {
	v := session.Values{Project: &l.Project, Definition: l.given["definition"], Solution: l.given["solution"]}
	switch name {
	case "FILE":
		return nil, ":files"
	case "DIR":
		return nil, ":folders"
	case "A", "B", "C": // of compare
		return v.Runs(), ":files"
	case "RUN":
		if l.typed.pending == nil && !strings.HasPrefix(l.command.HelpName, "fisub remote") {
			kind = ":folders"
		}
		return v.Runs(), kind
	case "BASELINE":
		return v.Baselines(), ":files"
	case "COMMAND|TOPIC":
		return l.topics(), ""
	case "DEFINITION":
		return v.Definitions(), ""
	case "SET":
		return v.Sets(), ""
	case "TABLE":
		return v.Tables(), ""
	case "REMOTE":
		return v.GitRemotes(), ""
	case "DEVICE":
		return session.Devices(), ""
	}
	words := map[string][]string{
		"WHEN": colors, "VERDICT": {"slower"}, "TOOL": device.Sanitizers, "SECTIONS": tools.Sections,
		"LANGUAGE": scaffold.LanguageNames(), "FORMAT": session.Formats, "FORM": {"ptx", "sass"},
		"PROFILE": config.Profiles, "TIMER": device.Timers, "GPU": append(bundle.GPUs(), "none"),
	}
	if strings.Contains(name, "|") {
		return session.Words(strings.Split(name, "|")...), ""
	}
	return session.Words(words[name]...), ""
}

// topics gives the commands below those that are given, and behind help alone the topics.
func (l *line) topics() (found []session.Value) {
	commands := (&app{term: l.term}).cli().Commands
	for _, arg := range l.args {
		c := findCommand(commands, arg)
		if c == nil {
			return nil
		}
		commands = c.Subcommands
	}
	found = commandCandidates(commands)
	if len(l.args) == 0 {
		for _, t := range docs.Topics() {
			if findCommand(commands, t.Name) == nil {
				found = append(found, session.Value{Word: t.Name, What: t.Title})
			}
		}
	}
	return found
}
