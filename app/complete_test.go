package app

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"fisub/app/flags"
	"fisub/internal/longtest"
	"fisub/runs"
)

// completionProject creates a folder with a submission, two remote tables and two runs, and changes into it.
func completionProject(t *testing.T) string {
	t.Helper()
	repo, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := copySubmission(repo, dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"config.toml": string(text) +
			"\n[remote.lab]\nprovider = \"ssh\"\nhosts = [\"gpu01\"]\n\n[remote.cluster]\nprovider = \"slurm\"\n",
		runs.Dir +
			"/20260101-120000-000-aaaa/run.json": `{"solution":"first","content_hash":"0123456789","device":{"name":"NVIDIA H200"}}`,
		runs.Dir + "/20260102-120000-000-bbbb/run.json": `not JSON`,
		"solution/baselines/mine/config.toml":           string(text),
		"other.json":                                    "",
		"a folder/x":                                    "",
		"broken/config.toml":                            "[solution\nname = 1",
		"broken/" + runs.Dir + "/20260103-1-c/run.json": "{}",
		"broken/solution/cuda/kernel.cu":                "",
		"broken/definitions/gdn/no_definition.json":     "{",
		"broken/workloads/gdn/nothing.jsonl":            "{",
		"broken/solution/baselines/theirs/config.toml":  "[",
	}
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	if out, err := exec.Command("bash", "-c",
		"git init -q && git remote add origin nowhere").CombinedOutput(); err != nil {
		t.Fatalf("git: %v\n%s", err, out)
	}
	t.Setenv("FISUB_CACHE", t.TempDir())
	t.Setenv("FIB_DATASET_PATH", "")
	return dir
}

// complete returns the candidates that a shell gets for the last word.
func complete(words ...string) string {
	var out strings.Builder
	completeMain(words, &out)
	return out.String()
}

// noValues lists names of values that only the user knows.
var noValues = []string{"N", "SECRET", "TIME", "GIB", "PERCENT", "NAME", "TEXT", "PREFIX", "AXIS=N", "ARCH", "FOUND", "HOST",
	"NAME=VALUE,..."}

func TestComplete(t *testing.T) {
	completionProject(t)
	for _, tc := range []struct {
		line string   // words after fisub; the part after the last space is to be completed
		want []string // candidates, in order; "..." for any others
	}{
		{"lo", []string{"local"}},
		{"runs ", []string{"ls", "show", "best", "rm"}},
		{"runs ls --f", []string{"--failed"}},
		{"remote gc --a", []string{"--all"}},
		{"remote c", []string{"cancel"}},
		{"work", nil}, // a hidden command
		{"local --pre", nil},
		{"local --dev", []string{"--device"}},
		{"local --device emu --device", nil}, // already given
		{"local --workload 3fb7 --workl", []string{"--workload"}},
		{"local --device ", []string{"auto", "emu", "cuda", "..."}},
		{"local --device=e", []string{"--device=emu"}},
		{"local -device e", []string{"emu"}},
		{"local --profile ", []string{"official", "quick", "thorough"}},
		{"local --timer c", []string{"cupti"}},
		{"local --set ", []string{"default", "batches", "contest", "edge"}},
		{"local --baseline ", []string{"flashinfer", "mine", "reference", "torch-compile", "torch-reference", "triton",
			"warp-8-rows", "warp-per-row", "none", ":files"}}, // not prefill-plain, which has another definition
		{"local --baseline m", []string{"mine", ":files"}},
		{"local --resume ", []string{"last", "last~1", "20260102-120000-000-bbbb", "20260101-120000-000-aaaa"}},
		{"runs show 20260101", []string{"20260101-120000-000-aaaa", ":folders"}},
		{"compare last o", []string{":files"}},
		{"compare 20260102", []string{"20260102-120000-000-bbbb", ":files"}},
		{"remote attach 202601", []string{"20260102-120000-000-bbbb", "20260101-120000-000-aaaa"}},
		{"remote --on ", []string{"cluster", "lab", "loopback"}},
		{"remote --on lab,c", []string{"lab,cluster"}},
		{"remote --gpu b2", []string{"b200"}},
		{"sanitize --tool memcheck,r", []string{"memcheck,racecheck"}},
		{"dataset ls --definition gdn_decode_qk8", []string{"gdn_decode_qk8_v16_d128_k_last"}},
		{"-C nowhere remote --on ", []string{"loopback"}},
		{"-C broken runs show 2", []string{"20260103-1-c", ":folders"}},
		{"check ", []string{":files"}},
		{"check config.toml --ar", []string{"--arch"}},
		{"compare last . --set c", []string{"contest"}},
		{"report last --format=m -o", []string{"-o"}},
		{"local -- --se", nil},
		{"unpack x.json ", []string{":folders"}},
		{"-C ", []string{":folders"}},
		{"--color ", []string{"auto", "always", "never"}},
		{"local --limit ", nil},
		{"completion ", []string{"bash", "zsh", "fish"}},
		{"help verd", []string{"verdicts"}},
		{"help remote g", []string{"gc"}},
		{"submit --remote ", []string{"origin"}},
		{"init --language t", []string{"triton"}},
		{"init --author ", nil},
		{"report --format ", []string{"html", "md"}},
		{"report last 20260101", []string{"20260101-120000-000-aaaa", ":folders"}},
		{"frobnicate ", nil},
	} {
		var got []string
		for line := range strings.Lines(complete(strings.Split(tc.line, " ")...)) {
			word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			got = append(got, word)
		}
		want := tc.want
		if n := len(want); n > 0 && want[n-1] == "..." && len(got) >= n-1 {
			want, got = want[:n-1], got[:n-1]
		}
		if !slices.Equal(got, want) {
			t.Errorf("fisub %s: got %q, want %q", tc.line, got, want)
		}
	}
	if text := complete("local", "--resume", "20260101"); !strings.Contains(text,
		"\tfirst 01234567, 0 workloads on NVIDIA H200\n") {
		t.Errorf("a run: got %q, want what it ran", text)
	}
}

// In a broken project completion prints nothing.
func TestCompleteBroken(t *testing.T) {
	completionProject(t)
	for _, words := range [][]string{
		{"-C", "broken", "local", "--set", ""}, {"-C", "broken", "--dataset", "broken", "local", "--set", ""},
		{"--config", "a folder", "remote", "--on", ""},
		{"-C", "broken", "--dataset", "broken", "dataset", "ls", "--definition", ""},
		{"-C", "broken", "local", "--baseline", ""}, {}, {"--config"},
	} {
		cmd := exec.Command("fisub", append(words, completeFlag)...)
		var complaint strings.Builder
		cmd.Stderr = &complaint
		if err := cmd.Run(); err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		if complaint.String() != "" {
			t.Errorf("%q: got %q on stderr, want nothing", words, complaint.String())
		}
	}
}

// Every flag with a value has candidates, or a placeholder for a value that only the user knows.
func TestCompleteAllFlags(t *testing.T) {
	completionProject(t)
	var walk func(names []string, commands []*cli.Command)
	walk = func(names []string, commands []*cli.Command) {
		for _, c := range commands {
			if c.Hidden {
				continue
			}
			here := append(slices.Clone(names), c.Name)
			for _, f := range c.Flags {
				if v, ok := f.(cli.VisibleFlag); !flags.TakeValue(f) || ok && !v.IsVisible() {
					continue
				}
				value, _, _ := strings.Cut(valueName(f), "[")
				if !slices.Contains(noValues, value) && complete(append(slices.Clone(here), "-"+f.Names()[0], "")...) == "" {
					t.Errorf("fisub %s --%s: nothing completes its value: add %q to values in complete.go, or to noValues",
						strings.Join(here, " "), f.Names()[0], value)
				}
			}
			walk(here, c.Subcommands)
		}
	}
	walk(nil, (&app{}).cli().Commands)
}

// shell returns the path of a shell, or skips the test.
func shell(t *testing.T, name string) string {
	t.Helper()
	longtest.CI(t, "starts shells")
	path, err := exec.LookPath(name)
	if err != nil {
		longtest.Missing(t, "shells", err)
	}
	return path
}

// testShell checks the candidates of a shell for lines that end at the cursor. offers returns the candidates for each
// line.
func testShell(t *testing.T, offers func(lines []string) [][]string) {
	cases := []struct {
		line string
		want []string
	}{
		{"fisub lo", []string{"local"}},
		{"fisub runs sh", []string{"show"}},
		{"fisub local --device e", []string{"emu"}},
		{"fisub local --device=e", []string{"--device=emu"}},
		{"fisub remote --on lab,cl", []string{"lab,cluster"}},
		{"fisub local --set b", []string{"batches"}},
		{"fisub remote attach 20260101", []string{"20260101-120000-000-aaaa"}},
		{"fisub check oth", []string{"other.json"}},
		{"fisub -C bro", []string{"broken/"}},
		{"fisub frobnicate x", nil},
	}
	var lines []string
	for _, tc := range cases {
		lines = append(lines, tc.line)
	}
	got := offers(lines)
	if len(got) != len(lines) {
		t.Fatalf("got %q, want offers for %d lines", got, len(lines))
	}
	for i, tc := range cases {
		if !slices.Equal(got[i], tc.want) {
			t.Errorf("%s: got %q, want %q", tc.line, got[i], tc.want)
		}
	}
}

func TestBash(t *testing.T) {
	bash := shell(t, "bash")
	completionProject(t)
	const script = `source <(fisub completion bash)
# What readline does: words break at white space and at COMP_WORDBREAKS.
line=$1 COMP_WORDS=() word=
for ((i = 0; i < ${#line}; i++)); do
    c=${line:i:1}
    case $c in
    ' ') [[ -z $word ]] || COMP_WORDS+=("$word"); word= ;;
    [=:]) [[ -z $word ]] || COMP_WORDS+=("$word"); COMP_WORDS+=("$c"); word= ;;
    *) word+=$c ;;
    esac
done
[[ -z $word && $c == [=:] ]] || COMP_WORDS+=("$word")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$line COMP_POINT=${#line}
_fisub
last=${COMP_WORDS[COMP_CWORD]}
[[ $last == [=:] ]] && last=
head=${line%"$last"} head=${head##* }
for word in "${COMPREPLY[@]}"; do [[ -d $word ]] && word+=/; printf '%s\n' "$head$word"; done`
	testShell(t, func(lines []string) (offers [][]string) {
		for _, line := range lines {
			out, err := exec.Command(bash, "--norc", "-c", script, "bash", line).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			offers = append(offers, strings.Fields(string(out)))
		}
		return offers
	})
	// For readline a colon is a word of its own, and only the part after it is replaced.
	t.Run("colon", func(t *testing.T) {
		out, err := exec.Command(bash, "--norc", "-c", `source <(fisub completion bash)
fisub() { printf 'cuda:0\ta GPU\ncuda:1\ta GPU\n'; }
COMP_WORDS=(fisub local --device cuda :) COMP_CWORD=4
_fisub; echo "${COMPREPLY[@]}"`).CombinedOutput()
		if err != nil || string(out) != "0 1\n" {
			t.Errorf("got %q, %v, want 0 1", out, err)
		}
	})
}

func TestFish(t *testing.T) {
	fish := shell(t, "fish")
	completionProject(t)
	testShell(t, func(lines []string) (offers [][]string) {
		for _, line := range lines {
			cmd := exec.Command(fish, "--no-config", "-c", "fisub completion fish | source; complete -C $argv[1]", line)
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var words []string
			for offer := range strings.Lines(string(out)) {
				word, _, _ := strings.Cut(strings.TrimSpace(offer), "\t")
				words = append(words, word)
			}
			offers = append(offers, words)
		}
		return offers
	})
}

// zsh completes only in its line editor. The test runs one on a pseudo-terminal that shows the line after a tab.
func TestZsh(t *testing.T) {
	zsh := shell(t, "zsh")
	completionProject(t)
	const script = `zmodload zsh/zpty || exit 1
zpty z zsh -f -i
zpty -w z "PS1=; autoload -Uz compinit; compinit -u -D; source <(fisub completion zsh); stty -echo; unsetopt zle_bracketed_paste
show-line() { print -r -- \"<<\$BUFFER>>\"; BUFFER= }; zle -N show-line; bindkey '^I' complete-word; bindkey '^X' show-line; echo RE''ADY"
zpty -r z out '*READY*'
for line; do
    zpty -w -n z "$line"$'\t\x18'
    zpty -r z out '*>>*'
    out=${out##*'<<'}
    print -r -- "${out%%'>>'*}"
done
zpty -d z`
	testShell(t, func(lines []string) (offers [][]string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, zsh, append([]string{"-f", "-c", script, "zsh"}, lines...)...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "TERM=dumb")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for i, got := range strings.Split(strings.TrimSuffix(string(out), "\n"), "\n") {
			var words []string
			if got = strings.TrimSpace(got); i < len(lines) && got != lines[i] {
				words = []string{got[strings.LastIndexByte(got, ' ')+1:]}
			}
			offers = append(offers, words)
		}
		return offers
	})
}
