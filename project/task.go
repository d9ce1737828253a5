package project

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"fisub/internal/cache"
	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/workloads"
	"fisub/workloads/tasks"
)

// Task returns the task of GPU MODE or KernelBench in the project's folder, which is read once. It is nil if there is
// none, or if a config describes a submission: one with remotes alone may be beside a task.
func (p *Project) Task() (*tasks.Task, error) {
	if p.task == nil {
		p.task = sync.OnceValues(func() (*tasks.Task, error) {
			cfg, _ := config.Read(p.ConfigPath())
			if cfg.Solution.Definition != "" || p.Config != "" || p.Dataset != "" {
				return nil, nil
			}
			t, err := tasks.Read(p.Root())
			return t, usage.Invalid(err)
		})
	}
	return p.task()
}

// openTask returns a dataset with the task alone, in a folder of the cache. Its default set is the task's first.
func openTask(t *tasks.Task) (*workloads.Dataset, error) {
	root, err := cache.Root()
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"definitions/definition.json": t.Definition.JSON(trace.Compact)}
	for i, s := range t.Sets {
		var lines []byte
		for _, w := range s.Workloads {
			line := &trace.Trace{Definition: t.Definition.Name, Workload: *w}
			lines = append(append(lines, line.JSON(trace.Compact)...), '\n')
		}
		if files["workloads/set."+s.Name+".ndjson"] = lines; i == 0 {
			files["workloads/workloads.jsonl"] = lines
		}
	}
	key := cache.Key(fmt.Sprintf("%q", files))
	dir, _, err := cache.Folder(context.Background(), root, "tasks", key, func(dir string) (err error) {
		for name, data := range files {
			file := filepath.Join(dir, name)
			err = errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, data, 0o644))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return workloads.Open(dir, root)
}

// loadTask returns a submission with the answer to t in file.
func (p *Project) loadTask(t *tasks.Task, file string, data *workloads.Dataset) (*Submission, error) {
	sol, err := t.Read(file)
	if file == t.Answer && errors.Is(err, fs.ErrNotExist) {
		return nil, usage.Errorf("fisub init "+plain.Word(plain.Relative(p.Root()))+" writes one that calls the reference",
			"%s: no answer: want %s", plain.Relative(t.File), filepath.Base(t.Answer))
	}
	return &Submission{Root: p.Root(), Data: data, Definition: t.Definition, Solution: sol}, usage.Invalid(err)
}
