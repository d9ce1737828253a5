package app

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/app/flags"
	"fisub/app/scaffold"
	"fisub/device"
	"fisub/device/nvcc"
	"fisub/docs"
	"fisub/internal/config"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/project/setup"
	"fisub/project/tools"
	"fisub/remote"
	"fisub/remote/bundle"
	"fisub/remote/ssh"
	"fisub/runs"
)

// completionScripts make a shell ask fisub for candidates.
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

// completeFlag is the last argument in a shell's request for candidates. The arguments before it are the typed words;
// the last of these is to be completed.
const completeFlag = "--generate-bash-completion"

// completionTime limits how long a user waits for candidates.
const completionTime = time.Second

// A typing is a command line whose last word is to be completed.
type typing struct {
	word    string   // the part typed so far
	pending cli.Flag // flag whose value the word is, or nil
}

// completeMain prints candidates for the last word, each with a tab and a description. A last line ":files" or
// ":folders" asks the shell to add its own. It prints nothing else, even if the project has errors.
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

// completer returns the hook that the flag package calls to complete a line of the command c. c is nil for the program
// itself.
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

// A line is the command line before the word to be completed.
type line struct {
	*app
	command *cli.Command // nil for the program itself
	flags   []cli.Flag
	below   []*cli.Command
	args    []string
	given   map[string]string // flags that are set, with their text values
}

func (l *line) print(w io.Writer) {
	found, kind, prefix := l.complete(l.typed.word)
	for _, c := range found {
		if strings.HasPrefix(prefix+c.word, l.typed.word) {
			fmt.Fprintf(w, "%s\t%s\n", plain.Line(prefix+c.word), plain.Line(c.what))
		}
	}
	if kind != "" {
		fmt.Fprintln(w, kind)
	}
}

// complete returns the candidates for word. prefix is the part of word that precedes them.
func (l *line) complete(word string) (found []candidate, kind, prefix string) {
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

func (l *line) flagNames() (found []candidate) {
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
			found = append(found, candidate{word: dashes + name,
				what: strings.ReplaceAll(f.(cli.DocGenerationFlag).GetUsage(), "`", "")})
		}
	}
	return found
}

func commandCandidates(commands []*cli.Command) (found []candidate) {
	for _, c := range commands {
		if !c.Hidden {
			found = append(found, candidate{word: c.Name, what: c.Usage})
		}
	}
	return found
}

// valueName returns the name of a flag's value in the help.
func valueName(f cli.Flag) string {
	parts := strings.SplitN(f.(cli.DocGenerationFlag).GetUsage(), "`", 3)
	if len(parts) < 3 {
		return ""
	}
	return parts[1]
}

// valuesOf returns the values of a flag. The items of a list such as "TABLE[,TABLE...]" are completed one by one.
func (l *line) valuesOf(f cli.Flag, word, prefix string) (found []candidate, kind, before string) {
	name, _, list := strings.Cut(valueName(f), "[")
	if i := strings.LastIndexByte(word, ','); list && i >= 0 {
		prefix += word[:i+1]
	}
	found, kind = l.values(name)
	return found, kind, prefix
}

// values returns the candidates for a flag value or an argument that the help calls name. kind is ":files" or
// ":folders" if files or folders are valid too.
func (l *line) values(name string) (found []candidate, kind string) {
	switch name {
	case "FILE":
		return nil, ":files"
	case "DIR":
		return nil, ":folders"
	case "A", "B", "C": // arguments of compare
		return l.runs(), ":files"
	case "RUN":
		if l.typed.pending == nil && !strings.HasPrefix(l.command.HelpName, "fisub remote") {
			kind = ":folders"
		}
		return l.runs(), kind
	case "BASELINE":
		return candidates(append(setup.BaselineNames(l.Root(), l.definition()), setup.NoBaseline)...), ":files"
	case "COMMAND|TOPIC":
		return l.topics(), ""
	case "DEFINITION":
		return l.definitions(), ""
	case "SET":
		return l.sets(), ""
	case "TABLE":
		return l.remoteTables(), ""
	case "HOST":
		return candidates(ssh.Known()...), ""
	case "REMOTE":
		return l.gitRemotes(), ""
	case "DEVICE":
		return devices(), ""
	}
	words := map[string][]string{
		"WHEN": colors, "VERDICT": {"slower"}, "SECTIONS": tools.Sections,
		"TOOL":     append([]string{"all"}, device.Sanitizers...),
		"LANGUAGE": scaffold.LanguageNames(), "FORMAT": reportFormats, "FORM": {"ptx", "sass"},
		"PROFILE": config.Profiles, "TIMER": device.Timers, "GPU": append(bundle.GPUs(), "none"),
		"VERSION": {nvcc.CUDA12},
	}
	if strings.Contains(name, "|") {
		return candidates(strings.Split(name, "|")...), ""
	}
	return candidates(words[name]...), ""
}

// topics returns the commands below the given ones and, directly after help, the topics.
func (l *line) topics() (found []candidate) {
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
				found = append(found, candidate{word: t.Name, what: t.Title})
			}
		}
	}
	return found
}

// A candidate is a possible completion; what describes it.
type candidate struct{ word, what string }

// candidates returns words that need no description.
func candidates(words ...string) []candidate {
	found := make([]candidate, len(words))
	for i, w := range words {
		found[i].word = w
	}
	return found
}

// definition returns the definition that the line, its packed solution or its config names, or "".
func (l *line) definition() string {
	if name := l.given["definition"]; name != "" {
		return name
	}
	if file := l.given["solution"]; file != "" {
		if sol, _, err := trace.ReadSolution(l.Path(file)); err == nil {
			return sol.Definition
		}
		return ""
	}
	cfg, err := config.Load(l.ConfigPath())
	if err != nil {
		return ""
	}
	return cfg.Solution.Definition
}

func (l *line) definitions() []candidate {
	data, err := l.OpenDataset()
	if err != nil {
		return nil
	}
	return candidates(data.Definitions()...)
}

// sets returns the sets of the definition, or of all if none is named.
func (l *line) sets() (found []candidate) {
	data, err := l.OpenDataset()
	if err != nil {
		return nil
	}
	names := data.Definitions()
	if name := l.definition(); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		sets, _ := data.Sets(name)
		for _, set := range sets {
			if !slices.ContainsFunc(found, func(c candidate) bool { return c.word == set }) {
				found = append(found, candidate{set, "of " + name})
			}
		}
	}
	return found
}

func (l *line) runs() (found []candidate) {
	ids, err := runs.IDs(l.Root())
	if err != nil || len(ids) == 0 {
		return nil
	}
	slices.Reverse(ids)
	profiles := 0
	for _, id := range ids {
		if runs.IsProfile(filepath.Join(l.Root(), runs.Dir, id)) {
			profiles++
		}
	}
	recent := []candidate{{"last", "the newest run"}, {"last~1", "the run before it"}}
	found = append(found, recent[:min(2, len(ids)-profiles)]...)
	recent = []candidate{{"profile", "the newest profile"}, {"profile~1", "the profile before it"}}
	found = append(found, recent[:min(2, profiles)]...)
	for i, id := range ids {
		what := ""
		if i < 50 { // each needs a file to be read
			if run, err := runs.Header(filepath.Join(l.Root(), runs.Dir, id)); err == nil {
				what = fmt.Sprintf("%s %s, %s on %s", run.Name(), plain.Short(run.ContentHash), plain.Count(len(run.Workloads),
					"workload"), run.Device.Name)
			}
		}
		found = append(found, candidate{id, what})
	}
	return found
}

func (l *line) remoteTables() (found []candidate) {
	tables, _ := l.Tables()
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		found = append(found, candidate{name, "a table of the config, of kind " + remote.Kind(tables[name])})
	}
	if tables["loopback"] == nil {
		found = append(found, candidate{"loopback", "this machine, through the same path as a remote host"})
	}
	return found
}

func (l *line) gitRemotes() []candidate {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
	defer cancel()
	repo, err := git.Open(ctx, l.Root())
	if err != nil {
		return nil
	}
	names, _ := repo.Remotes(ctx)
	return candidates(names...)
}

// devices lists the GPUs by their device files: opening a device would take too long.
func devices() []candidate {
	found := []candidate{{"auto", "the first GPU, else the virtual GPU"}, {"emu", "the virtual GPU; measures nothing"},
		{"cuda", "the first GPU"}}
	nodes, _ := fs.Glob(os.DirFS("/dev"), "nvidia[0-9]*")
	for _, node := range nodes {
		found = append(found, candidate{"cuda:" + strings.TrimPrefix(node, "nvidia"), "a GPU"})
	}
	return found
}
