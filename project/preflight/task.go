package preflight

import (
	"context"
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"fisub/bench/pyworker"
	"fisub/device"
	"fisub/project/preflight/source"
	"fisub/workloads/tasks"
)

// guarded are words in answers that a reader of the source should see. GPU MODE's gate, KernelGuard, and its bot look
// for them: they are allowed, but a submission with them is looked at, or refused.
var guarded = []struct{ pattern, what string }{
	{`(?i)stream`, "a board warns of submissions with this word: it does not time work on another stream"},
	{`\b(sys\.(_getframe|modules|argv)|inspect\.(stack|currentframe)|gc\.get_(objects|referrers)|__globals__)\b`,
		"an answer that can tell who calls it may compute something else for its judge"},
	{`\b(cuda\.)?(Event|synchronize|elapsed_time)\s*=[^=]`, "replaces what a board times with"},
	{`\btorch\.backends\.[\w.]+\s*=[^=]`, "changes how a board's reference computes; fisub's is in another process"},
	{`\bdata_ptr\(\)`, "an address as a key of a cache gives old results for new inputs"},
	{`\b(perf_counter\w*|time\.time\w*)\s*=[^=]`, "replaces a clock"},
	{`POPCORN_(FD|SEED)`, "uses the board's own variables"},
}

// kernel matches the definition of a kernel in CUDA, Triton, CuTe or TileLang.
var kernel = regexp.MustCompile(`__global__|@(triton\.|cute\.)?(jit|kernel)\b|@T\.prim_func|\bcutlass\b`)

// task adds findings about an answer to a task.
func (c *checker) task(ctx context.Context) {
	if c.Report.Definition == nil || c.Report.Definition.Python == nil {
		return
	}
	for _, s := range c.Report.Solution.Sources {
		c.imports(ctx, s.Path, s.Content)
		if c.Report.Definition.OpType == tasks.GPUMode {
			c.directives(s.Path, s.Content)
		}
		if !kernel.MatchString(s.Content) {
			c.add(Note, "no-kernel", s.Path, "", "defines no kernel: operations of torch or of a library do the work")
		}
		for _, g := range guarded {
			if at := regexp.MustCompile(g.pattern).FindStringIndex(s.Content); at != nil {
				line := 1 + strings.Count(s.Content[:at[0]], "\n")
				c.addAt(Note, "guarded-word", s.Path, line, "", "%s: %s", strings.TrimSpace(s.Content[at[0]:at[1]]), g.what)
			}
		}
	}
}

//go:embed imports.py
var importsScript string

// imports adds warnings about imports of an answer that the Python of fisub's worker does not have. Without such a
// Python, or if the source is not valid, there are none.
func (c *checker) imports(ctx context.Context, path, text string) {
	python, err := pyworker.Find(ctx)
	if err != nil {
		return
	}
	limit, cancel := context.WithTimeout(ctx, pythonLimit)
	defer cancel()
	cmd := device.Command(limit, python, "-c", importsScript)
	cmd.Stdin = strings.NewReader(text)
	out, _ := cmd.Output()
	for text := range strings.Lines(string(out)) {
		var line int
		var name string
		_, err := fmt.Sscan(text, &line, &name)
		if _, ours := c.Report.Definition.Python.Files.Get(name + ".py"); err == nil && !ours {
			c.addAt(Warning, "missing-import", path, line, "install it, or set FISUB_PYTHON to a Python that has it",
				"%s has no module %s, and the task has no such file", python, name)
		}
	}
}

// directives checks the header of a submission to GPU MODE's boards by the rules of kernelbot's submission.py
// (gpu-mode/kernelbot 4bdd839a): the first lines, which begin with # or //.
func (c *checker) directives(path, text string) {
	seen := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "//") {
			break
		}
		words := append(strings.Fields(line), "", "")
		if words[0] != "#!POPCORN" && words[0] != "//!POPCORN" {
			continue
		}
		key, fault := strings.ToLower(words[1]), ""
		if key == "gpu" {
			key = "gpus"
		}
		switch {
		case words[2] == "":
			fault = fmt.Sprintf("!POPCORN %s has no value", key)
		case key != "leaderboard" && key != "gpus":
			fault = "unknown directive !POPCORN " + key
		case seen[key]:
			fault = "a second !POPCORN " + key
		}
		if seen[key] = true; fault != "" {
			c.addAt(Error, "popcorn-directive", path, i+1, "#!POPCORN leaderboard NAME, #!POPCORN gpus B200", "%s", fault)
		}
	}
	if !seen["leaderboard"] {
		c.add(Note, "no-leaderboard", path, "#!POPCORN leaderboard NAME in the first line",
			"names no leaderboard: the board asks for it")
	}
}

// addAt is add with a line.
func (c *checker) addAt(s source.Severity, code, path string, line int, hint, format string, args ...any) {
	c.add(s, code, path, hint, format, args...)
	f := &c.Findings[len(c.Findings)-1]
	f.Line, f.Col = line, 1
}
