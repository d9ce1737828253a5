package preflight

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"

	"fisub/bench/pyworker"
	"fisub/device"
	"fisub/workloads/tasks"
)

//go:embed answer.py
var answerScript string

// task adds findings about an answer to a task. Only the Python of fisub's worker tells which imports are missing.
func (c *checker) task(ctx context.Context) error {
	def := c.Report.Definition
	if def == nil || def.Python == nil {
		return nil
	}
	python, lacks := pyworker.Find(ctx)
	if python == "" {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, pythonLimit)
	defer cancel()
	for _, s := range c.Report.Solution.Sources {
		in, _ := json.Marshal(map[string]any{"text": s.Content, "files": def.Python.Files.Keys(),
			"installed": lacks == nil, "board": def.OpType == tasks.GPUMode})
		cmd := device.Command(limit, python, "-c", answerScript)
		cmd.Stdin = bytes.NewReader(in)
		out, err := cmd.Output()
		var found []Finding
		if err == nil {
			err = json.Unmarshal(out, &found)
		}
		if err != nil {
			return fmt.Errorf("checking %s with %s: %w", s.Path, python, err)
		}
		for _, f := range found {
			f.Path = s.Path
			c.Findings = append(c.Findings, f)
		}
	}
	return nil
}
