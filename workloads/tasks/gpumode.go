package tasks

import (
	"cmp"
	"fmt"
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

// The names that a board's eval.py uses, if it is one that fisub can follow.
var boardNames = []string{"custom_kernel", "generate_input", "check_implementation"}

func readGPUMode(file string) (*Task, error) {
	var y taskFile
	text, err := plain.ReadFile(file, maxFile)
	if err == nil {
		err = yaml.Unmarshal(text, &y)
	}
	dir := filepath.Dir(file)
	abs, absErr := filepath.Abs(dir)
	switch {
	case err != nil:
		return nil, fail(file, 0, "a task of GPU MODE has the keys files, lang, config and tests", "%s",
			strings.TrimPrefix(plain.Cause(err).Error(), "yaml: "))
	case absErr != nil:
		return nil, absErr
	case y.MultiGPU:
		return nil, fail(file, 0, "run it on its board", "multi_gpu: fisub runs tasks on one GPU")
	case y.Lang != "py":
		return nil, fail(file, 0, "fisub runs tasks with lang: py; their submissions may contain CUDA in load_inline",
			"lang: %q is not supported", y.Lang)
	case len(y.Tests) == 0 && len(y.Benchmarks) == 0:
		return nil, fail(file, 0, "a task has at least one case", "no tests and no benchmarks")
	case !slices.Contains([]string{"", "last", "mean", "geom"}, y.RankingBy):
		return nil, fail(file, 0, "last, mean or geom", "ranking_by: %q", y.RankingBy)
	}
	f := &trace.Functions{Call: "one", Ranking: cmp.Or(y.RankingBy, "last")}
	for _, part := range y.Files {
		if part.Source == "@SUBMISSION@" {
			continue
		}
		if !filepath.IsLocal(part.Name) {
			return nil, fail(file, 0, "files of a task are in its folder", "files: name %q", part.Name)
		}
		content, err := readPython(filepath.Join(dir, filepath.FromSlash(part.Source)))
		if err != nil {
			return nil, err
		}
		f.Files.Set(path.Clean(part.Name), content)
	}
	if err := follow(file, y.Config.Main, f); err != nil {
		return nil, err
	}
	t := &Task{File: file, Answer: filepath.Join(dir, "submission.py"), symbol: "custom_kernel",
		Definition: define(filepath.Base(abs), GPUMode, y.Description, f)}
	tests, err := readCases(t, "tests", y.Tests)
	if err != nil {
		return nil, err
	}
	benchmarks, err := readCases(t, Benchmarks, y.Benchmarks)
	t.Sets = slices.DeleteFunc([]Set{tests, benchmarks}, func(s Set) bool { return len(s.Workloads) == 0 })
	return t, err
}

// defines reports whether Python code defines or imports a name at its top level.
func defines(text, name string) bool {
	pattern := `(?m)^((async )?def NAME\b|class NAME\b|NAME\s*(:[^=]*)?=|(from|import) .*\bNAME\b)`
	return regexp.MustCompile(strings.ReplaceAll(pattern, "NAME", name)).MatchString(text)
}

// follow sets the functions of f by the board's own program, main.
func follow(file, main string, f *trace.Functions) error {
	program, _ := f.Files.Get(main)
	for _, used := range boardNames {
		if !strings.Contains(program, used) {
			return fail(file, 0, "fisub follows boards whose eval.py calls "+plain.List(boardNames, "and"),
				"%s never calls %s: this kind of board is not supported", cmp.Or(main, "config.main"), used)
		}
	}
	for source, text := range f.Files.All() {
		for name, to := range map[string]*string{"generate_input": &f.Inputs, "check_implementation": &f.Check} {
			if source != main && defines(text, name) {
				*to = source + "::" + name
			}
		}
	}
	if f.Inputs == "" || f.Check == "" {
		return fail(file, 0, "reference.py usually defines them", "no file defines generate_input or check_implementation")
	}
	if defines(program, "get_test_cases") {
		f.Cases = main + "::get_test_cases"
	}
	return nil
}

// readCases reads the tests or benchmarks: maps of integers, strings and lists of integers.
func readCases(t *Task, name string, cases []yaml.Node) (Set, error) {
	s := Set{Name: name}
	for _, n := range cases {
		var axes trace.Map[int]
		var arguments trace.Map[any]
		if n.Kind != yaml.MappingNode {
			return s, fail(t.File, n.Line, `{"size": 1024, "seed": 42}`, "%s: want a map", name)
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i].Value, n.Content[i+1]
			var v any
			err := value.Decode(&v)
			switch v := v.(type) {
			case int:
				if v < 0 {
					arguments.Set(key, v)
				} else {
					axes.Set(key, v)
				}
			case bool, string, float64, []any:
				arguments.Set(key, v)
			default:
				return s, fail(t.File, value.Line, "an integer, a string or a list of integers", "%s: %s: %v", name, key,
					cmp.Or(err, fmt.Errorf("a %T", v)))
			}
		}
		s.Workloads = append(s.Workloads, workload(t.Definition, name, axes, arguments))
	}
	return s, nil
}
