package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"fisub/app/flags"
	"fisub/app/scaffold"
	"fisub/docs"
	"fisub/internal/longtest"
	"fisub/internal/ui"
	"fisub/remote/providers"
)

// needs maps examples that a test cannot run to their missing requirement. All other examples are run.
var needs = map[string]string{
	"fisub local --set contest --device cuda:0":                                      "a GPU",
	"fisub local --limit 3 --watch":                                                  "someone who ends it",
	"fisub runs best":                                                                "runs on a GPU",
	"fisub mcp -C my-kernel":                                                         "a project of that name",
	"fisub sanitize --tool memcheck,racecheck --workload 3fb7":                       "a GPU",
	"fisub profile":                                                                  "a GPU",
	"fisub profile --set contest --workload 2f4e --ncu-set full":                     "a GPU",
	"fisub compare last~1 last":                                                      "runs on a GPU",
	"fisub compare profile~1 profile":                                                "profiles",
	"fisub compare HEAD .":                                                           "a GPU",
	"fisub compare --define TILE=16,32,64 --define STAGES=2,3":                       "constants of these names",
	"fisub compare --device emu --define TILE=16,32":                                 "a constant of this name",
	"fisub compare before.jsonl after.jsonl":                                         "counters of programs",
	"fisub compare . solution/baselines/warp-per-row solution/baselines/warp-8-rows": "a GPU",
	"fisub compare --fail-on slower --set contest main HEAD":                         "a GPU",
	"fisub remote --gpu b200 --on lab":                                               "hosts",
	"fisub remote --on lab --shards 4":                                               "hosts",
	"fisub remote --on cluster,cloud --detach":                                       "hosts",
	"fisub remote --gpu b200 --baseline warp-per-row":                                "hosts",
	"fisub remote --gpu b200":                                                        "hosts",
	"fisub remote --gpu b200 --host me@gpu01":                                        "hosts",
	"fisub remote gc --on lab":                                                       "hosts",
	"fisub remote hosts --on lab":                                                    "hosts",
	"fisub compare --on lab HEAD .":                                                  "hosts",
	"fisub sanitize --on lab":                                                        "hosts",
	"fisub profile --on lab":                                                         "hosts",
	"fisub dataset verify --dataset ~/mlsys26-contest": "a clone of the contest's " +
		"dataset",
	"fisub dataset import ~/flashinfer/tests/trace/fi_trace_out -o trace":                    "a clone of FlashInfer",
	"fisub --dataset trace dataset ls":                                                       "that dataset",
	"fisub nvcc -o prog prog.cu":                                                             "a CUDA compiler",
	"fisub emu ./prog":                                                                       "a CUDA compiler",
	"fisub emu --sanitize racecheck,initcheck ./prog --size 1024":                            "a CUDA compiler",
	"fisub emu --timeout 30s ./prog":                                                         "a CUDA compiler",
	"fisub report profile":                                                                   "a profile",
	"fisub emu --profile --counters prog.html ./prog":                                        "a CUDA compiler",
	"fisub emu python -m pytest tests":                                                       "a Python with PyTorch and Triton",
	"fisub emu python train.py --steps 2":                                                    "a Python with PyTorch and Triton",
	"fisub emu --profile ./prog":                                                             "a CUDA compiler",
	"fisub nvcc -std=c++17 -O2 -o prog prog.cu":                                              "a CUDA compiler",
	"fisub nvcc -arch=sm_90a -c kernel.cu -o kernel.o":                                       "a CUDA compiler",
	"fisub nvcc --cuda 12.9 -o old old.cu":                                                   "a CUDA compiler",
	"fisub check --arch sm_90,sm_100":                                                        "a CUDA compiler",
	"fisub init my-kernel":                                                                   "a terminal",
	"fisub init --definition gdn_decode_qk4_v8_d128_k_last --language triton --author me .":  "an empty folder",
	"fisub init --definition gdn_mtp_pool_bf16_state_qk4_v8_d128_k_last --author me my-pool": "a folder without a submission",
	"fisub submit --push":                                                                    "a remote repository",
	"fisub -C my-kernel local":                                                               "a project, as in the tutorial",
	"fisub submit --dry-run":                                                                 "a project, as in the tutorial",
	"fisub submit --dry-run --json=final":                                                    "a project, as in the tutorial",
	"fisub doctor --require cuda,remote.lab":                                                 "a GPU",
	"fisub toolchain install":                                                                "PyPI",
	"fisub toolchain show":                                                                   "a CUDA compiler",
}

// allCommands returns the visible commands and their subcommands.
func allCommands(commands []*cli.Command) (all []*cli.Command) {
	for _, c := range commands {
		if !c.Hidden {
			all = append(append(all, c), allCommands(c.Subcommands)...)
		}
	}
	return all
}

// Each part of help.txt is about a command, and the part about remote names all kinds of providers.
func TestDescriptions(t *testing.T) {
	for words := range descriptions() {
		commands := (&app{}).cli().Commands
		for word := range strings.FieldsSeq(words) {
			c := findCommand(commands, word)
			if c == nil {
				t.Fatalf("help.txt: no command %q", words)
			}
			commands = c.Subcommands
		}
	}
	if want := "(" + strings.Join(providers.Names(), ", ") + ")"; !strings.Contains(descriptions()["remote"], want) {
		t.Errorf("help.txt: remote does not name %s", want)
	}
}

// Every command has an example. fisub accepts each example, and those that need only this machine run.
func TestExamples(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, c := range allCommands((&app{}).cli().Commands) {
		found := regexp.MustCompile(`(?m)^   (fisub .*?)(  .*)?$`).FindAllStringSubmatch(c.Description, -1)
		if len(found) == 0 && len(c.Subcommands) == 0 {
			t.Errorf("%s: its help has no example: a line of three spaces and the command in its Description", c.Name)
		}
		for _, m := range found {
			lines = append(lines, m[1])
		}
	}
	for line := range needs {
		if !slices.Contains(lines, line) {
			t.Errorf("needs has %q, no command's help does", line)
		}
	}
	for _, line := range lines {
		if err := understood(line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if t.Failed() {
		return
	}

	longtest.CI(t, "runs the examples")
	command := exampleFolder(t)
	for _, line := range lines {
		if why := needs[line]; why != "" {
			t.Logf("not run, it needs %s: %s", why, line)
			continue
		}
		begin := time.Now()
		out, err := command("-o", "pipefail", "-c", line).CombinedOutput()
		t.Logf("%5.1fs %s", time.Since(begin).Seconds(), line)
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
}

// understood checks flags and arguments of each call of fisub in a line of shell, without running it.
func understood(line string) error {
	line, _, _ = strings.Cut(line, ">")
	for part := range strings.SplitSeq(line, "|") {
		words := strings.Fields(part)
		if len(words) == 0 || words[0] != "fisub" {
			return fmt.Errorf("%q is no call of fisub", part)
		}
		a := &app{stdout: os.Stdout, stderr: os.Stderr, typed: &typing{}} // its folders need not exist
		program := a.cli()
		ran := false
		var disarm func(commands []*cli.Command)
		disarm = func(commands []*cli.Command) {
			for _, c := range commands {
				if c.Hidden {
					continue
				}
				c.Action = flags.Checked(c, func(*cli.Context) error {
					ran = true
					return nil
				})
				disarm(c.Subcommands)
			}
		}
		disarm(program.Commands)
		sorted, _ := flags.First(program, words)
		if err := program.Run(sorted); err != nil {
			return err
		}
		if !ran {
			return errors.New("it calls no command")
		}
	}
	return nil
}

// README is short. fisub accepts all its commands, the first three make a submission that passes, and its links work.
func TestReadme(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if n := strings.Count(text, "\n"); n >= 90 {
		t.Errorf("%d lines, want less than 90", n)
	}
	var lines []string
	for _, m := range regexp.MustCompile(`(?m)^    (fisub .*?)(  .*)?$`).FindAllStringSubmatch(text, -1) {
		lines = append(lines, m[1])
		if err := understood(m[1]); err != nil {
			t.Errorf("%s: %v", m[1], err)
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([^)]*)\)|(docs/[a-z-]+\.md)`).FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join("..", m[1]+m[2])); err != nil {
			t.Error(err)
		}
	}
	if len(lines) < 3 || t.Failed() {
		t.Fatalf("got commands %q, want three to begin with", lines)
	}
	longtest.Skip(t, "runs the first three commands")
	cmd := exec.Command("bash", "-ec", strings.Join(lines[:3], "\n"))
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "FISUB_CACHE="+newCache(t), "FIB_DATASET_PATH=")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "20 of 20 PASSED") {
		t.Errorf("%v\n%s", err, out)
	}
}

// AGENTS.md names the definition's tensors, and only commands that fisub accepts.
func TestAgents(t *testing.T) {
	data, err := (&app{}).OpenDataset()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range scaffold.WithKernel(data.Definitions()) {
		def, err := data.Definition(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, language := range scaffold.Languages {
			p, err := scaffold.New(scaffold.Options{Definition: def, Language: language, Name: "k", Author: "me"})
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(p.Files, func(f scaffold.File) bool { return f.Path == "AGENTS.md" })
			text := string(p.Files[at].Content)
			for tensor := range def.Inputs.All() {
				if !strings.Contains(text, "\n- "+tensor+" ") {
					t.Errorf("%s, %s: AGENTS.md lacks the input %s", name, language, tensor)
				}
			}
			lines := regexp.MustCompile(`(?m)^    (fisub .*?)(  .*)?$`).FindAllStringSubmatch(text, -1)
			if len(lines) < 5 {
				t.Errorf("%s, %s: got %d commands, want more", name, language, len(lines))
			}
			for _, m := range lines {
				if err := understood(m[1]); err != nil {
					t.Errorf("%s: %v", m[1], err)
				}
			}
		}
	}
}

func TestUnderstood(t *testing.T) {
	for line, want := range map[string]bool{
		"fisub local": true, "fisub local --frobnicate": false, "fisub local last": false, "fisub runs show": false,
		"fisub runs show last":                  true,
		"fisub pack -o - | fisub unpack - copy": true, "fisub pack | less": false, "fisub frob": false,
		"fisub local --limit many": false,
		"fisub check x -v":         true, "fisub check -- x -v": false,
	} {
		if err := understood(line); (err == nil) != want {
			t.Errorf("%s: got %v", line, err)
		}
	}
}

// exampleFolder creates a repository with this repository's submission, packed and run on the virtual GPU. It returns
// a function that makes bash commands in it.
func exampleFolder(t *testing.T) (bash func(args ...string) *exec.Cmd) {
	t.Helper()
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := copySubmission(repo, dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"workloads/gdn", "solution/baselines"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(repo, name))); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "FISUB_CACHE="+newCache(t), "FIB_DATASET_PATH=", "GIT_AUTHOR_NAME=me", "GIT_COMMITTER_NAME=me",
		"GIT_AUTHOR_EMAIL=me@example.com", "GIT_COMMITTER_EMAIL=me@example.com")
	bash = func(args ...string) *exec.Cmd {
		cmd := exec.Command("bash", args...)
		cmd.Dir, cmd.Env = dir, env
		return cmd
	}
	out, err := bash("-e", "-c",
		`echo .fisub >.gitignore; git init -q -b main; git add .; git commit -qm first
fisub pack; fisub local --device emu --limit 2`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bash
}

// Each topic fits about one screen, and names only existing flags, commands and files of docs.
func TestTopics(t *testing.T) {
	commands := (&app{}).cli().Commands
	flags := []string{"--help", "--version"}
	for _, c := range allCommands(commands) {
		for _, f := range c.Flags {
			flags = append(flags, "--"+f.Names()[0])
		}
	}
	for _, topic := range docs.Topics() {
		text := docs.Plain(topic.Text, 80)
		if n := strings.Count(text, "\n"); n > 50 {
			t.Errorf("%s: %d lines, want a screen", topic.Name, n)
		}
		for line := range strings.Lines(text) {
			if len([]rune(line)) > 92 {
				t.Errorf("%s: a long line: %s", topic.Name, line)
			}
		}
		for _, m := range regexp.MustCompile(`(?:^|[\s(])(--[a-z-]+)`).FindAllStringSubmatch(topic.Text, -1) {
			if !slices.Contains(flags, m[1]) {
				t.Errorf("%s: no command has the flag %s", topic.Name, m[1])
			}
		}
		for _, m := range regexp.MustCompile("fisub ([a-z]+)( [a-z-]+)?").FindAllStringSubmatch(topic.Text, -1) {
			if findCommand(commands, m[1]) == nil && m[1] != "reads" && m[1] != "could" && m[1] != "looks" {
				t.Errorf("%s: no command fisub %s", topic.Name, m[1])
			}
			if _, err := docs.Find(strings.TrimSpace(m[2])); m[1] == "help" && err != nil {
				t.Errorf("%s: fisub help%s: %v", topic.Name, m[2], err)
			}
		}
		for _, m := range regexp.MustCompile(`docs/[a-z./]+\.(md|json)`).FindAllString(topic.Text, -1) {
			if _, err := os.Stat(filepath.Join("..", m)); err != nil {
				t.Errorf("%s: %v", topic.Name, err)
			}
		}
	}
}

// Each flag's usage and each command's usage fits on one line of help: at most 80 characters, without a full stop.
func TestUsageLength(t *testing.T) {
	a := &app{term: &ui.Terminal{Out: io.Discard, Err: io.Discard}}
	check := func(place, usage string) {
		usage = strings.ReplaceAll(usage, "`", "")
		if n := utf8.RuneCountInString(usage); n > 80 || n == 0 || strings.HasSuffix(usage, ".") {
			t.Errorf("%s: %d characters: %s", place, n, usage)
		}
	}
	for _, c := range allCommands(a.cli().Commands) {
		check(c.HelpName+" "+c.Name, c.Usage)
		for _, f := range c.Flags {
			if v, ok := f.(cli.VisibleFlag); ok && v.IsVisible() {
				check(c.Name+" --"+f.Names()[0], f.(cli.DocGenerationFlag).GetUsage())
			}
		}
	}
}

// On a narrow terminal, paragraphs are reflowed, and flags keep their columns.
func TestWrapHelp(t *testing.T) {
	long := strings.Repeat("word ", 21) + "end"
	const flag = "   --set SET   run the workloads of SET of the contest"
	got := wrapHelp("NAME:\n   "+long+"\n   of it.\n\n   fisub a\n   fisub b\n\n"+flag, 40)
	want := "NAME:\n   " + strings.Repeat("word ", 6) + "word\n   " + strings.Repeat("word ", 6) + "word\n   " +
		strings.Repeat("word ",
			6) + "word\n   end of it.\n\n   fisub a\n   fisub b\n\n   --set SET   run the workloads of SET\n" +
		"               of the contest"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// A description that begins too far right moves to a line of its own.
	got = wrapHelp("   fisub local --set contest --sample 6  six sizes, from the smallest\n   fisub local", 40)
	want = "   fisub local --set contest --sample 6\n       six sizes, from the smallest\n   fisub local"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// At 80 columns, all descriptions of a command's flags begin in one column, at most in the middle.
func TestFlagColumns(t *testing.T) {
	for _, words := range [][]string{{"local"}, {"remote"}, {"compare"}, {"sanitize"}} {
		var text bytes.Buffer
		if err := helpOf(&text, words); err != nil {
			t.Fatal(err)
		}
		_, list, _ := strings.Cut(wrapHelp(text.String(), 79), "\nOPTIONS:\n")
		list, _, _ = strings.Cut(list, "\n\n")
		column := 0
		for line := range strings.Lines(list) {
			at := indentOf(line)
			if gaps := columnGap.FindAllStringIndex(line, -1); at == 3 && len(gaps) > 0 {
				at = gaps[0][1]
			}
			if column == 0 {
				column = at
			}
			if at != column || at > 40 {
				t.Errorf("%s: column %d, want %d: %s", words, at, column, line)
			}
		}
	}
}
