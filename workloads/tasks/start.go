package tasks

import (
	"fmt"
	"path/filepath"
	"regexp"
)

var (
	reference = regexp.MustCompile(`(?m)^def (ref\w*|reference\w*)\(`)
	model     = regexp.MustCompile(`\bModel\b`)
)

// Start returns an answer that passes, to begin with: it calls the task's own reference, or is its model.
func (t *Task) Start() (text string, err error) {
	files := &t.Definition.Python.Files
	if t.Definition.OpType == KernelBench {
		text, _ = files.Get("problem.py")
		return model.ReplaceAllString(text, "ModelNew"), nil
	}
	for file, text := range files.All() {
		if m := reference.FindStringSubmatch(text); m != nil && filepath.Ext(file) == ".py" {
			module := file[:len(file)-len(".py")]
			return fmt.Sprintf("#!POPCORN leaderboard %s\nfrom %s import %s\n\n\ndef custom_kernel(data):\n"+
				"    # The reference: replace it by kernels.\n    return %s(data)\n", t.Definition.Name, module, m[1], m[1]), nil
		}
	}
	return "", fail(t.File, 0, "write "+filepath.Base(t.Answer)+" with def custom_kernel(data)",
		"no file has a function ref_kernel to start from")
}
