package preflight

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	"fisub/bench/pyworker"
	"fisub/device"
	"fisub/project/preflight/source"
	"fisub/workloads/tasks"
)

// guarded are words in submissions that GPU MODE's gate, KernelGuard, or its bot looks for. They are allowed, but a
// submission with them is looked at, or refused.
var guarded = []struct{ pattern, what string }{
	{`(?i)stream`, "the board warns of submissions with this word: it does not time work on another stream"},
	{`\b(sys\.(_getframe|modules)|inspect\.(stack|currentframe)|gc\.get_(objects|referrers)|__globals__)\b`,
		"reads the judge's frames or modules"},
	{`\b(cuda\.)?(Event|synchronize|elapsed_time)\s*=[^=]`, "replaces what the board times with"},
	{`\bdata_ptr\(\)`, "an address as a key of a cache gives old results for new inputs"},
	{`\b(perf_counter\w*|time\.time\w*)\s*=[^=]`, "replaces a clock"},
	{`POPCORN_(FD|SEED)`, "uses the board's own variables"},
}

// task adds findings about an answer to a task.
func (c *checker) task(ctx context.Context) {
	t := c.Task
	for _, s := range c.Report.Solution.Sources {
		c.imports(ctx, t, s.Path, s.Content)
		if t.Definition.OpType != tasks.GPUMode {
			continue
		}
		c.directives(s.Path, s.Content)
		for _, g := range guarded {
			if at := regexp.MustCompile(g.pattern).FindStringIndex(s.Content); at != nil {
				line := 1 + strings.Count(s.Content[:at[0]], "\n")
				c.addAt(Note, "guarded-word", s.Path, line, "", "%s: %s", strings.TrimSpace(s.Content[at[0]:at[1]]), g.what)
			}
		}
	}
}

// topImport matches an import at the top level of a module.
var topImport = regexp.MustCompile(`(?m)^(?:import|from)[ \t]+([A-Za-z_]\w*)`)

// imports adds notes about imports of an answer that the Python of fisub's worker does not have. Without such a Python
// there are none.
func (c *checker) imports(ctx context.Context, t *tasks.Task, path, text string) {
	python, err := pyworker.Find(ctx)
	if err != nil {
		return
	}
	at := map[string]int{}
	for _, m := range topImport.FindAllStringSubmatchIndex(text, -1) {
		name := text[m[2]:m[3]]
		if _, ours := t.Definition.Python.Files.Get(name + ".py"); !ours && at[name] == 0 {
			at[name] = 1 + strings.Count(text[:m[0]], "\n")
		}
	}
	names := slices.Sorted(maps.Keys(at))
	limit, cancel := context.WithTimeout(ctx, pythonLimit)
	defer cancel()
	out, err := device.Command(limit, python, append([]string{"-c", "import importlib.util as u, sys\n" +
		"print(*(n for n in sys.argv[1:] if u.find_spec(n) is None))"}, names...)...).Output()
	if err != nil {
		return
	}
	for _, name := range strings.Fields(string(out)) {
		c.addAt(Warning, "missing-import", path, at[name], "install it, or set FISUB_PYTHON to a Python that has it",
			"%s has no module %s, and the task has no such file", python, name)
	}
}

// directives checks the header of a submission to GPU MODE's boards by the rules of kernelbot's submission.py
// (gpu-mode/kernelbot 4bdd839a).
func (c *checker) directives(path, text string) {
	known, seen := []string{"leaderboard", "gpus"}, map[string]bool{}
	for _, d := range tasks.Directives(text) {
		switch {
		case d.Text == "":
			c.addAt(Error, "popcorn-directive", path, d.Line, "#!POPCORN leaderboard NAME, #!POPCORN gpus B200",
				"!POPCORN %s has no value", d.Key)
		case !slices.Contains(known, d.Key):
			c.addAt(Error, "popcorn-directive", path, d.Line, "one of "+strings.Join(known, ", "),
				"unknown directive !POPCORN %s", d.Key)
		case seen[d.Key]:
			c.addAt(Error, "popcorn-directive", path, d.Line, "keep one", "a second !POPCORN %s", d.Key)
		}
		seen[d.Key] = true
	}
	if !seen["leaderboard"] {
		c.addAt(Note, "no-leaderboard", path, 0, "#!POPCORN leaderboard NAME in the first line",
			"names no leaderboard: the board asks for it")
	}
}

// addAt is add with a line.
func (c *checker) addAt(s source.Severity, code, path string, line int, hint, format string, args ...any) {
	c.add(s, code, path, hint, format, args...)
	if f := &c.Findings[len(c.Findings)-1]; line > 0 {
		f.Line, f.Col = line, 1
	}
}
