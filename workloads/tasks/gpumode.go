package tasks

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"fisub/internal/plain"
	"fisub/internal/trace"
)

// A taskFile is the part of task.yml that fisub uses.
type taskFile struct {
	Files []struct {
		Name   string
		Source string
	}
	Lang        string
	Config      struct{ Main string }
	Description string
	Tests       []yaml.Node
	Benchmarks  []yaml.Node
	MultiGPU    bool   `yaml:"multi_gpu"`
	RankingBy   string `yaml:"ranking_by"`
}

// Benchmarks is the set whose times a board ranks.
const Benchmarks = "benchmarks"

// GPUMode and KernelBench are the op types of the tasks' definitions.
const GPUMode, KernelBench = "gpumode", "kernelbench"

const (
	submissionFile = "submission.py"
	submission     = "@SUBMISSION@" // the source of the file that stands for the answer
)

// The names that a board's eval.py uses, if it is one that fisub can follow.
var boardNames = []string{"custom_kernel", "generate_input", "check_implementation"}

func readGPUMode(file string) (*Task, error) {
	text, err := plain.ReadFile(file, maxFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, plain.Cause(err))
	}
	var t taskFile
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&t); err != nil {
		return nil, fail(file, 0, "a task of GPU MODE has the keys files, lang, config and tests", "%s",
			strings.TrimPrefix(err.Error(), "yaml: "))
	}
	switch {
	case t.MultiGPU:
		return nil, fail(file, 0, "run it on its board", "multi_gpu: fisub runs tasks on one GPU")
	case t.Lang != "py":
		return nil, fail(file, 0, "fisub runs tasks with lang: py; their submissions may contain CUDA in load_inline",
			"lang: %q is not supported", t.Lang)
	case len(t.Tests) == 0 && len(t.Benchmarks) == 0:
		return nil, fail(file, 0, "a task has at least one case", "no tests and no benchmarks")
	}
	dir := filepath.Dir(file)
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	f := &trace.Functions{Call: "one"}
	main := ""
	for _, part := range t.Files {
		if part.Source == submission {
			continue
		}
		if !filepath.IsLocal(part.Name) || !strings.HasSuffix(part.Name, ".py") {
			return nil, fail(file, 0, "files of a task are Python files", "files: name %q", part.Name)
		}
		content, err := readPython(filepath.Join(dir, filepath.FromSlash(part.Source)))
		if err != nil {
			return nil, err
		}
		if part.Name == t.Config.Main {
			main = content
		}
		f.Files.Set(path.Clean(part.Name), content)
	}
	if f.Ranking = cmp.Or(t.RankingBy, "last"); !slices.Contains([]string{"last", "mean", "geom"}, f.Ranking) {
		return nil, fail(file, 0, "last, mean or geom", "ranking_by: %q", f.Ranking)
	}
	if err := follow(file, t.Config.Main, main, f); err != nil {
		return nil, err
	}
	answerFile := filepath.Join(dir, submissionFile)
	name := leaderboard(answerFile)
	if name == "" {
		name = filepath.Base(abs)
	}
	task := &Task{File: file, Answer: answerFile, symbol: "custom_kernel",
		Definition: define(name, GPUMode, t.Description, f)}
	for _, set := range []struct {
		name  string
		cases []yaml.Node
	}{{"tests", t.Tests}, {Benchmarks, t.Benchmarks}} {
		s := Set{Name: set.name}
		for i := range set.cases {
			w, err := readCase(file, task.Definition, set.name, &set.cases[i])
			if err != nil {
				return nil, err
			}
			s.Workloads = append(s.Workloads, w)
		}
		task.Sets = append(task.Sets, s)
	}
	if _, err := os.Lstat(answerFile); errors.Is(err, fs.ErrNotExist) {
		return task, nil
	}
	task.Solution, err = task.Read(answerFile)
	return task, err
}

// defines reports whether Python code defines or imports a name at its top level.
func defines(text, name string) bool {
	pattern := `(?m)^((async )?def NAME\b|class NAME\b|NAME\s*(:[^=]*)?=|(from|import) .*\bNAME\b)`
	return regexp.MustCompile(strings.ReplaceAll(pattern, "NAME", name)).MatchString(text)
}

// follow sets the functions of f by the board's own program, main.
func follow(file, name, main string, f *trace.Functions) error {
	if main == "" {
		return fail(file, 0, "config: {main: eval.py}", "config.main: %q is not one of the files", name)
	}
	for _, used := range boardNames {
		if !strings.Contains(main, used) {
			return fail(file, 0, "fisub follows boards whose eval.py calls "+plain.List(boardNames, "and"),
				"%s never calls %s: this kind of board is not supported", name, used)
		}
	}
	for source, text := range f.Files.All() {
		if source == name {
			continue
		}
		for _, to := range []struct {
			function string
			field    *string
		}{{"generate_input", &f.Inputs}, {"check_implementation", &f.Check}} {
			if defines(text, to.function) {
				*to.field = source + "::" + to.function
			}
		}
	}
	for function, found := range map[string]string{"generate_input": f.Inputs, "check_implementation": f.Check} {
		if found == "" {
			return fail(file, 0, "reference.py usually defines it", "no file defines %s", function)
		}
	}
	if defines(main, "get_test_cases") {
		f.Cases = name + "::get_test_cases"
	}
	return nil
}

// readCase reads one of the tests or benchmarks: a map of integers, strings and lists of integers.
func readCase(file string, def *trace.Definition, set string, n *yaml.Node) (*trace.Workload, error) {
	var axes trace.Map[int]
	var arguments trace.Map[any]
	if n.Kind != yaml.MappingNode {
		return nil, fail(file, n.Line, `{"size": 1024, "seed": 42}`, "%s: want a map", set)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i].Value, n.Content[i+1]
		var v any
		if err := value.Decode(&v); err != nil {
			return nil, fail(file, value.Line, "an integer, a string or a list of integers", "%s: %s: %v", set, key, err)
		}
		switch v := v.(type) {
		case int:
			if v >= 0 {
				axes.Set(key, v)
				continue
			}
			arguments.Set(key, int64(v))
		case bool, string, float64:
			arguments.Set(key, v)
		case []any:
			if slices.ContainsFunc(v, func(x any) bool { _, ok := x.(int); return !ok }) {
				return nil, fail(file, value.Line, "lists of a case hold integers", "%s: %s: %v", set, key, v)
			}
			list := make([]any, len(v))
			for i, x := range v {
				list[i] = int64(x.(int)) //nolint:forcetypeassert // checked
			}
			arguments.Set(key, list)
		default:
			return nil, fail(file, value.Line, "an integer, a string or a list of integers", "%s: %s: a %T", set, key, v)
		}
	}
	return workload(def, set, axes, arguments), nil
}

// A Directive is one line of a submission's header, with which it names its leaderboard and GPUs.
type Directive struct {
	Line      int
	Key, Text string
}

// Directives returns the directives of a submission: those in its first block of comments, as kernelbot reads them.
func Directives(text string) (all []Directive) {
	for i, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "//") {
			break
		}
		words := strings.Fields(line)
		if words[0] != "#!POPCORN" && words[0] != "//!POPCORN" {
			continue
		}
		d := Directive{Line: i + 1}
		if len(words) > 1 {
			d.Key = strings.ToLower(words[1])
		}
		if d.Key == "gpu" {
			d.Key = "gpus"
		}
		if len(words) > 2 {
			d.Text = strings.Join(words[2:], " ")
		}
		all = append(all, d)
	}
	return all
}

// leaderboard returns the name of the board that the submission in a file names, or "".
func leaderboard(file string) string {
	text, _ := readPython(file) // an unreadable file is an error of its reader
	for _, d := range Directives(text) {
		if d.Key == "leaderboard" {
			name, _, _ := strings.Cut(d.Text, " ")
			return name
		}
	}
	return ""
}
