package session

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"fisub/explain"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
	"fisub/pack"
	"fisub/preflight"
	"fisub/submit"
)

// Checks is what fisub check says of s, without its notes, as steps on the way to a tag. What has not been compiled is
// not ready, unless it may be tagged untested.
func Checks(s *Submission, r *preflight.Report, untested bool) []submit.Step {
	var steps []submit.Step
	sound := true
	for _, f := range r.Findings {
		step := submit.Step{Name: "check", State: submit.Fault, Text: FindingText(f), Hint: f.Hint}
		switch {
		case f.Severity == preflight.Warning:
			step.State = submit.Warning
		case f.Severity == preflight.Error:
			sound = false
		case f.Code == "not-compiled" && s.Solution.Spec.Compiled() && !untested:
			step.State = submit.Todo
		case f.Code == "not-compiled":
			step.State = submit.Warning
		default:
			continue
		}
		steps = append(steps, step)
	}
	if sound {
		text := fmt.Sprintf("sound: %s, %s, %s", plain.Count(len(s.Solution.Sources), "file"), s.Solution.Spec.EntryPoint,
			CallText(s.Solution, s.Definition))
		steps = slices.Insert(steps, 0, submit.Step{Name: "check", State: submit.OK, Text: text})
	}
	return steps
}

// FindingText is the place, the fact, the code, and the excerpt.
func FindingText(f preflight.Finding) string {
	f.Path = Relative(f.Path)
	text := plain.Line(fmt.Sprintf("%s [%s]", f, f.Code)) // names of files are the author's
	if f.Excerpt != "" {
		text += "\n" + f.Excerpt
	}
	return text
}

// CallText says how a solution of the definition is called.
func CallText(sol *trace.Solution, def *trace.Definition) string {
	own := def.Returned()
	in, out := plain.Count(def.Inputs.Len(), "input"), own.Len()
	if sol.Spec.DestinationPassingStyle {
		return fmt.Sprintf("destination-passing: %s and %s", in, plain.Count(out, "output"))
	}
	return fmt.Sprintf("value-returning: %s, %s", in, plain.Count(out, "result"))
}

// Relative shows a path as seen from the working directory where that is shorter.
func Relative(p string) string {
	wd, err := os.Getwd()
	if err != nil {
		return p
	}
	if rel, err := filepath.Rel(wd, p); err == nil && len(rel) < len(p) {
		return rel
	}
	return p
}

// A Checked is what check says of several submissions.
type Checked struct {
	OK          bool         `json:"ok"`
	Submissions []CheckedOne `json:"submissions"`
}

// A CheckedOne is what check says of one.
type CheckedOne struct {
	OK          bool                `json:"ok"`
	ContentHash *string             `json:"content_hash"`
	Config      string              `json:"config,omitempty"`
	Findings    []preflight.Finding `json:"findings"`
	Files       []pack.Entry        `json:"files"`
	Kernels     []preflight.Kernel  `json:"kernels"`
	Collected   []collectedJSON     `json:"collected"`
}

type collectedJSON struct {
	Path       string `json:"path"`
	Name       string `json:"name"`
	Definition string `json:"definition"`
	Author     string `json:"author"`
}

// NewChecked is the JSON of a report.
func NewChecked(r *preflight.Report, strict bool) CheckedOne {
	one := CheckedOne{OK: r.OK(strict), Findings: append([]preflight.Finding{}, r.Findings...),
		Files: append([]pack.Entry{}, r.Entries...), Kernels: []preflight.Kernel{}, Collected: []collectedJSON{}}
	if r.Packs {
		hash := r.Solution.Hash()
		one.ContentHash = &hash
	}
	if r.Config != nil {
		one.Config = r.Config.Path
	}
	for _, b := range r.Builds {
		one.Kernels = append(one.Kernels, b.Kernels...)
	}
	for _, s := range r.Repository.Taken() {
		one.Collected = append(one.Collected, collectedJSON{s.File, s.Name, s.Definition, s.Author})
	}
	return one
}

// A CheckedFile is what the check of a dataset file found.
type CheckedFile struct {
	File   string      `json:"file"`
	Sound  bool        `json:"sound"`
	Holds  string      `json:"holds,omitempty"` // in words
	Faults []FileFault `json:"faults,omitempty"`
}

// A FileFault is one thing wrong with a file.
type FileFault struct {
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"`
}

// CheckFile checks a dataset file; what it holds is told by its keys.
func CheckFile(ctx context.Context, file string) (CheckedFile, []trace.Warning) {
	what, warnings, err := preflight.File(ctx, file)
	one := CheckedFile{File: Relative(file), Sound: err == nil}
	if err == nil {
		one.Holds = what
		return one, warnings
	}
	for _, e := range usage.Flatten(err) {
		text, hint := explain.Error(e)
		one.Faults = append(one.Faults, FileFault{text, hint})
	}
	return one, warnings
}
