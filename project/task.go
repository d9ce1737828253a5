package project

import (
	"fisub/internal/config"
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

// loadTask returns the submission in the project's folder if that has a task, else nil.
func (p *Project) loadTask(data *workloads.Dataset) (*Submission, error) {
	t, err := p.Task()
	if t == nil || err != nil {
		return nil, err
	}
	if t.Solution == nil {
		return nil, usage.Errorf("fisub init "+p.Root()+" writes one", "%s: no answer: want %s", t.File, t.Answer)
	}
	sets := map[string][]*trace.Workload{}
	for i, s := range t.Sets {
		sets[s.Name] = s.Workloads
		if i == 0 {
			sets[workloads.DefaultSet] = s.Workloads
		}
	}
	return &Submission{Root: p.Root(), Data: data.With(t.Definition, sets), Definition: t.Definition, Solution: t.Solution,
		Task: t}, nil
}
