package project

import (
	"bytes"
	"context"
	"os"
	"path/filepath"

	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/workloads"
	"fisub/workloads/tasks"
)

// Task returns the task of GPU MODE or KernelBench in the project's folder. It is nil if there is none, and if a config
// describes a submission: one with remotes alone may be beside a task.
func (p *Project) Task() (*tasks.Task, error) {
	if cfg, _ := config.Read(p.ConfigPath()); cfg.Solution.Definition != "" || p.Config != "" {
		return nil, nil
	}
	t, err := tasks.Read(p.Root())
	return t, usage.Invalid(err)
}

// openTask returns a dataset with the task alone, in a folder of the cache.
func openTask(t *tasks.Task) (*workloads.Dataset, error) {
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	def := t.Definition
	files := map[string][]byte{filepath.Join("definitions", "definition.json"): def.JSON(trace.Compact)}
	key := []string{string(def.JSON(trace.Compact))}
	for i, s := range t.Sets {
		var lines bytes.Buffer
		for _, w := range s.Workloads {
			line := &trace.Trace{Definition: def.Name, Workload: *w}
			lines.Write(append(line.JSON(trace.Compact), '\n'))
		}
		if i == 0 {
			files[filepath.Join("workloads", "workloads.jsonl")] = lines.Bytes()
		}
		files[filepath.Join("workloads", "set."+s.Name+".ndjson")] = lines.Bytes()
		key = append(key, s.Name, lines.String())
	}
	dir, _, err := cache.Folder(context.Background(), root, "tasks", cache.Key(key...), func(dir string) error {
		for name, data := range files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return workloads.Open(dir, root)
}

// loadTask returns a submission with an answer to the task: file, or the task's own if that is "".
func (p *Project) loadTask(t *tasks.Task, file string, data *workloads.Dataset) (*Submission, error) {
	s := &Submission{Root: p.Root(), Data: data, Solution: t.Solution, Task: t}
	var err error
	if s.Definition, err = data.Definition(t.Definition.Name); err != nil {
		return nil, usage.Invalid(err)
	}
	if file != "" {
		s.Solution, err = t.Read(file)
		return s, usage.Invalid(err)
	}
	if t.Solution == nil {
		return nil, usage.Errorf("fisub init "+plain.Word(plain.Relative(p.Root()))+" writes one that calls the reference",
			"%s: no answer: want %s", plain.Relative(t.File), filepath.Base(t.Answer))
	}
	return s, nil
}
