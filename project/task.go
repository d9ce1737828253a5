package project

import (
	"bytes"
	"context"
	"errors"
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
	definition := t.Definition.JSON(trace.Compact)
	files, key := map[string][]byte{"definitions/definition.json": definition}, []string{string(definition)}
	for _, s := range t.Sets {
		var lines bytes.Buffer
		for _, w := range s.Workloads {
			line := &trace.Trace{Definition: t.Definition.Name, Workload: *w}
			lines.Write(append(line.JSON(trace.Compact), '\n'))
		}
		files["workloads/set."+s.Name+".ndjson"] = lines.Bytes()
		key = append(key, s.Name, lines.String())
	}
	files["workloads/workloads.jsonl"] = files["workloads/set."+t.Sets[0].Name+".ndjson"]
	dir, _, err := cache.Folder(context.Background(), root, "tasks", cache.Key(key...), func(dir string) (err error) {
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
