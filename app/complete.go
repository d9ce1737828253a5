package app

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
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

	"fisub/bench/runs"
	"fisub/device"
	"fisub/docs"
	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/remote"
	"fisub/remote/bundle"
	"fisub/workloads"
)

// The scripts teach a shell to ask `fisub __complete`.
//
//go:embed completion/*
var completionScripts embed.FS

var shells = []string{"bash", "zsh", "fish"}

func (a *app) completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print what teaches a shell to complete fisub's words",
		ArgsUsage: strings.Join(shells, "|"),
		Description: "It completes commands, flags and their values: definitions, workload sets, beginnings of uuids, run ids, baselines,\n" +
			"remotes. Add to the file that the shell reads when it starts:\n\n" +
			"   ~/.bashrc                    source <(fisub completion bash)\n" +
			"   ~/.zshrc, behind compinit    source <(fisub completion zsh)\n" +
			"   ~/.config/fish/config.fish   fisub completion fish | source\n\n" +
			"   fisub completion bash",
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return usage("fisub completion bash", "completion: got %d arguments, want a shell", c.NArg())
			}
			if !slices.Contains(shells, c.Args().First()) {
				return unknown("shell", c.Args().First(), shells)
			}
			script, err := completionScripts.ReadFile("completion/" + c.Args().First())
			if err == nil {
				_, err = a.stdout.Write(script)
			}
			return err
		},
	}
}

// completionTime is what completing may take: whoever types waits for it.
const completionTime = time.Second

// completeMain is `fisub __complete WORD...`, the hidden command that the shells ask: the words behind fisub, the last being
// the one to complete. It prints candidates, each with a tab and a few words about it, and as the last line ":files" or
// ":folders" where those of the shell are candidates too. It prints nothing else, whatever is wrong with the project.
func completeMain(words []string, stdout io.Writer) int {
	done := make(chan string, 1)
	go func() {
		defer func() {
			if recover() != nil {
				done <- ""
			}
		}()
		done <- complete(words)
	}()
	select {
	case text := <-done:
		_, _ = io.WriteString(stdout, text)
	case <-time.After(completionTime):
	}
	return exitOK
}

// A candidate is a word that may stand where the cursor is.
type candidate struct{ word, what string }

func complete(words []string) string {
	if len(words) == 0 {
		words = []string{""}
	}
	cur := words[len(words)-1]
	app := (&app{}).cli()
	l := readLine(app, words[:len(words)-1])
	found, kind, prefix := l.candidates(cur)
	var b strings.Builder
	for _, c := range found {
		if strings.HasPrefix(prefix+c.word, cur) {
			fmt.Fprintf(&b, "%s\t%s\n", plain.Line(prefix+c.word), plain.Line(c.what))
		}
	}
	if kind == "files" || kind == "folders" {
		b.WriteString(":" + kind + "\n")
	}
	return b.String()
}

// A line is what stands before the cursor.
type line struct {
	command *cli.Command // nil: the program itself
	words   []string     // its name, "remote gc"
	flags   []cli.Flag
	below   []*cli.Command
	args    []string
	given   map[string][]string // values by flag
	pending cli.Flag            // waits for its value
}

func readLine(app *cli.App, words []string) *line {
	l := &line{flags: app.Flags, below: app.Commands, given: map[string][]string{}}
	onlyArgs := false
	for _, word := range words {
		switch {
		case l.pending != nil:
			l.give(l.pending, word)
			l.pending = nil
		case onlyArgs:
			l.args = append(l.args, word)
		case word == "--":
			onlyArgs = true
		case strings.HasPrefix(word, "-") && word != "-":
			name, value, whole := strings.Cut(strings.TrimLeft(word, "-"), "=")
			switch f := l.flag(name); {
			case f == nil:
			case whole, !takesValue(f):
				l.give(f, value)
			default:
				l.pending = f
			}
		default:
			if c := findCommand(l.below, word); c != nil && len(l.args) == 0 {
				l.command, l.flags, l.below = c, c.Flags, c.Subcommands
				l.words = append(l.words, c.Name)
			} else {
				l.args = append(l.args, word)
			}
		}
	}
	return l
}

func (l *line) flag(name string) cli.Flag { return flagNamed(l.flags, name) }

func (l *line) give(f cli.Flag, value string) {
	l.given[f.Names()[0]] = append(l.given[f.Names()[0]], value)
}

func (l *line) value(flag string) string {
	if values := l.given[flag]; len(values) > 0 {
		return values[len(values)-1]
	}
	return ""
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// candidates gives what may stand in place of cur, behind prefix, which is a part of cur.
func (l *line) candidates(cur string) (found []candidate, kind, prefix string) {
	if l.pending != nil {
		return l.valuesOf(l.pending, cur, "")
	}
	if name, value, ok := strings.Cut(cur, "="); ok && strings.HasPrefix(cur, "-") {
		if f := l.flag(strings.TrimLeft(name, "-")); f != nil {
			return l.valuesOf(f, value, name+"=")
		}
		return nil, "", ""
	}
	if strings.HasPrefix(cur, "-") {
		if len(l.args) > 0 {
			return nil, "", "" // fisub takes no flags behind arguments
		}
		for _, f := range l.flags {
			v, ok := f.(cli.VisibleFlag)
			if _, again := f.(*cli.StringSliceFlag); ok && !v.IsVisible() || !again && len(l.given[f.Names()[0]]) > 0 {
				continue
			}
			m := flagOf(f)
			for _, name := range m.Names {
				found = append(found, candidate{name, m.Usage})
			}
		}
		return append(found, candidate{"--help", "show help"}), "", ""
	}
	if len(l.args) == 0 {
		for _, c := range l.below {
			if !c.Hidden {
				found = append(found, candidate{c.Name, c.Usage})
			}
		}
	}
	if l.command != nil && l.command.ArgsUsage != "" {
		words := strings.Fields(l.command.ArgsUsage)
		n := min(len(l.args), len(words)-1)
		word := strings.Trim(words[n], "[].")
		if n == len(l.args) || strings.Contains(words[n], "...") || l.command.Name == "help" {
			values, k := l.argument(word)
			return append(found, values...), k, ""
		}
	}
	return found, "", ""
}

// valuesOf gives the values of a flag. Those of a list, "NAME[,NAME...]", are completed one by one.
func (l *line) valuesOf(f cli.Flag, cur, prefix string) (found []candidate, kind, before string) {
	placeholder := flagOf(f).Value
	if one, _, ok := strings.Cut(placeholder, "["); ok {
		placeholder = one
		if i := strings.LastIndexByte(cur, ','); i >= 0 {
			prefix += cur[:i+1]
		}
	}
	found, kind = l.values(f.Names()[0], placeholder)
	return found, kind, prefix
}

// argument gives what an argument may be that the help calls word.
func (l *line) argument(word string) ([]candidate, string) {
	switch word {
	case "COMMAND|TOPIC":
		commands := (&app{}).cli().Commands
		for _, arg := range l.args {
			c := findCommand(commands, arg)
			if c == nil {
				return nil, ""
			}
			commands = c.Subcommands
		}
		var found []candidate
		for _, c := range commands {
			if !c.Hidden {
				found = append(found, candidate{c.Name, c.Usage})
			}
		}
		if len(l.args) == 0 {
			for _, t := range docs.Topics() {
				if !slices.ContainsFunc(found, func(c candidate) bool { return c.word == t.Name }) {
					found = append(found, candidate{t.Name, t.Title})
				}
			}
		}
		return found, ""
	case "A", "B", "C": // of compare
		return l.runs(), "files"
	case "RUN":
		if strings.HasPrefix(strings.Join(l.words, " "), "remote ") {
			return l.runs(), ""
		}
		return l.runs(), "folders"
	case "FILE":
		return nil, "files"
	case "DIR":
		return nil, "folders"
	}
	if strings.ToLower(word) == word && strings.Contains(word, "|") {
		return plainWords(strings.Split(word, "|")...), ""
	}
	return nil, ""
}

// noValues are the placeholders and the names of flags whose values only the user knows.
var noValues = []string{"N", "TIME", "GIB", "USD", "PERCENT", "author", "name"}

// values gives those of a flag: by its name, or by the placeholder that stands in its help.
func (l *line) values(flag, placeholder string) ([]candidate, string) {
	switch flag {
	case "color":
		return plainWords("auto", "always", "never"), ""
	case "fail-on":
		return plainWords("slower"), ""
	case "tool":
		return plainWords(sanitizers...), ""
	case "ncu-set":
		return plainWords("basic", "detailed", "full"), ""
	case "on":
		return l.remotes(), ""
	case "baseline":
		names := baselineNames(filepath.Dir(l.config()))
		return plainWords(append(names, noBaseline)...), "files"
	case "definition":
		return l.definitions(), ""
	case "language":
		return plainWords(strings.Split(languageNames(), ", ")...), ""
	case "format":
		return plainWords("html", "md", "csv"), ""
	case "remote":
		return l.gitRemotes(), ""
	case "require":
		return plainWords("cuda", "compiler", "git", "nvcc", "tvm-ffi", "python", "torch", "triton", "dataset", "config", "remote"), ""
	}
	switch placeholder {
	case "FILE":
		return nil, "files"
	case "DIR":
		return nil, "folders"
	case "RUN":
		return l.runs(), ""
	case "SET":
		return l.sets(), ""
	case "PREFIX":
		return l.workloads(), ""
	case "DEVICE":
		return devices(), ""
	case "PROFILE":
		return plainWords(config.Profiles...), ""
	case "TIMER":
		return plainWords(device.Timers...), ""
	case "ARCH":
		return plainWords("sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a"), ""
	case "GPU":
		return plainWords(append(bundle.GPUs(), "none")...), ""
	}
	return nil, ""
}

func plainWords(words ...string) []candidate {
	found := make([]candidate, len(words))
	for i, w := range words {
		found[i].word = w
	}
	return found
}

// path makes name relative to -C.
func (l *line) path(name string) string {
	if dir := l.value("C"); dir != "" && !filepath.IsAbs(name) {
		return filepath.Join(dir, name)
	}
	return name
}

func (l *line) config() string { return l.path(cmp.Or(l.value("config"), config.Name)) }

func (l *line) dataset() *workloads.Dataset {
	root, err := cache.Root()
	if err != nil {
		return nil
	}
	dir := os.Getenv("FIB_DATASET_PATH")
	if named := l.value("dataset"); named != "" {
		dir = l.path(named)
	}
	data, err := workloads.Open(dir, root)
	if err != nil {
		return nil
	}
	return data
}

// definition is the one that the line, its packed solution or its config names; "" where none does.
func (l *line) definition() string {
	if name := l.value("definition"); name != "" {
		return name
	}
	if file := l.value("solution"); file != "" {
		if sol, _, err := trace.ReadSolution(l.path(file)); err == nil {
			return sol.Definition
		}
		return ""
	}
	cfg, err := config.Load(l.config())
	if err != nil {
		return ""
	}
	return cfg.Solution.Definition
}

func (l *line) definitions() (found []candidate) {
	if data := l.dataset(); data != nil {
		found = plainWords(data.Definitions()...)
	}
	return found
}

// sets are those of the definition, or of all where none is named.
func (l *line) sets() (found []candidate) {
	data := l.dataset()
	if data == nil {
		return nil
	}
	names := data.Definitions()
	if name := l.definition(); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		sets, err := data.Sets(name)
		if err != nil {
			continue
		}
		for _, set := range sets {
			if !slices.ContainsFunc(found, func(c candidate) bool { return c.word == set }) {
				found = append(found, candidate{set, "of " + name})
			}
		}
	}
	return found
}

func (l *line) workloads() (found []candidate) {
	data, name := l.dataset(), l.definition()
	if data == nil || name == "" {
		return nil
	}
	set := l.value("set")
	if cfg, err := config.Load(l.config()); err == nil && l.value("solution") == "" {
		set = cmp.Or(set, cfg.Bench.Set)
	}
	ws, err := data.Workloads(name, cmp.Or(set, "default"))
	if err != nil {
		return nil
	}
	for _, w := range ws {
		found = append(found, candidate{plain.Short(w.UUID), strings.TrimSpace(axesText(w))})
	}
	return found
}

// runs are those of the folder, the newest first.
func (l *line) runs() (found []candidate) {
	root := filepath.Dir(l.config())
	ids, err := runs.IDs(root)
	if err != nil || len(ids) == 0 {
		return nil
	}
	slices.Reverse(ids)
	found = []candidate{{"last", "the newest run"}}
	if len(ids) > 1 {
		found = append(found, candidate{"last~1", "the run before it"})
	}
	for i, id := range ids {
		what := ""
		if i < 50 { // each is a file to read
			var run event.Run
			if data, err := os.ReadFile(filepath.Join(root, runs.Dir, id, "run.json")); err == nil && json.Unmarshal(data, &run) == nil {
				what = fmt.Sprintf("%s %s, %d workloads on %s", run.Solution, plain.Short(run.ContentHash), len(run.Workloads), run.Device.Name)
			}
		}
		found = append(found, candidate{id, what})
	}
	return found
}

func (l *line) remotes() (found []candidate) {
	if cfg, err := config.Load(l.config()); err == nil {
		for _, name := range slices.Sorted(maps.Keys(cfg.Remote)) {
			found = append(found, candidate{name, "a table of the config, of kind " + remote.Kind(cfg.Remote[name])})
		}
	}
	if !slices.ContainsFunc(found, func(c candidate) bool { return c.word == "loopback" }) {
		found = append(found, candidate{"loopback", "this machine, the whole way"})
	}
	return found
}

func (l *line) gitRemotes() []candidate {
	ctx, cancel := context.WithTimeout(context.Background(), completionTime/2)
	defer cancel()
	repo, err := git.Open(ctx, filepath.Dir(l.config()))
	if err != nil {
		return nil
	}
	names, _ := repo.Remotes(ctx)
	return plainWords(names...)
}

// devices are those that the driver has made files for; to open one would take too long.
func devices() []candidate {
	found := []candidate{{"auto", "the first GPU, else the emulator"}, {"emu", "the emulator: no times"}, {"cuda", "the first GPU"}}
	nodes, _ := fs.Glob(os.DirFS("/dev"), "nvidia[0-9]*")
	for _, node := range nodes {
		found = append(found, candidate{"cuda:" + strings.TrimPrefix(node, "nvidia"), "a GPU"})
	}
	return found
}
