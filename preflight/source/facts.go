package source

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"path"

	"fisub/internal/trace"
)

// A Python runs a script in CPython, with nothing but its standard library, and returns what it prints. Its error says
// in a few words why there is nothing.
type Python func(script string, stdin []byte) (stdout []byte, err error)

//go:embed pyfacts.py
var pyFacts string

// A pyPlace is a place in a source; its line is 0 where it is the whole.
type pyPlace struct{ Line, Column int }

// A pyFault is what CPython does not take. It is doubtful where a later CPython may.
type pyFault struct {
	pyPlace
	Text     string
	Doubtful bool
}

// facts are what pyfacts.py tells of a solution, or of a definition.
type facts struct {
	Version string // of CPython, such as "3.12"
	Files   []pyFile
	Entry   *pyEntry // nil where its file cannot be read

	Reference   *pyFault
	Constraints []*pyFault
}

type pyFile struct {
	Path    string
	Reached bool     // the entry imports it
	Error   *pyFault // and then there are no facts
	Facts   []pyFact
}

// A pyFact is an import, or a use of torch.ops.Name.
type pyFact struct {
	pyPlace
	Kind, Name string // Kind is "import" or "op"
	Reached    bool   // the entry may run it

	// Of an import of the module Name:
	Names   []string // what it takes of the module
	Level   int      // its leading dots
	Own     bool     // by an absolute name, of a file of the solution
	Helped  bool     // it is tried, it is imported relatively too, or the search path is changed
	Guarded bool     // it is tried
	Called  bool     // something of it is called by what the entry reaches
	About   bool     // only where it lies is asked
}

// A pyEntry is what the entry file binds to the entry's name.
type pyEntry struct {
	Defs      []pyFunction
	Class     *pyPlace
	Bound     bool     // by anything else
	Functions []string // of the file
}

// A pyFunction takes least to most positional arguments, -1 for any number. Keyword is a keyword-only parameter without
// default.
type pyFunction struct {
	pyPlace
	Least, Most int
	Keyword     string
	IsAsync     bool `json:"is_async"`
	Decorators  []string
	Returns     string // "tuple", "none", "other", or "" where the annotation leaves it open
	Values      int    // of a tuple
}

// ask gives a request to the script.
func ask(python Python, request any) (*facts, error) {
	in, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	out, err := python(pyFacts, in)
	if err != nil {
		return nil, err
	}
	var f facts
	if err := json.Unmarshal(out, &f); err != nil {
		return nil, fmt.Errorf("what python printed is no JSON: %v", err)
	}
	return &f, nil
}

// solutionFacts are those of the Python sources of a solution with that entry; "" is none.
func solutionFacts(python Python, sol *trace.Solution, entry, symbol string) (*facts, error) {
	request := struct {
		Sources []trace.SourceFile `json:"sources"`
		Entry   string             `json:"entry"`
		Symbol  string             `json:"symbol"`
	}{Entry: entry, Symbol: symbol}
	for _, s := range sol.Sources {
		if suffix(path.Base(s.Path)) == ".py" {
			request.Sources = append(request.Sources, s)
		}
	}
	if request.Sources == nil {
		return &facts{}, nil
	}
	return ask(python, request)
}

// Definition returns the faults of a definition's reference and constraints as Python; it fails where they were not
// looked at.
func Definition(def *trace.Definition, python Python) (faults []string, err error) {
	f, err := ask(python, struct {
		Reference   string   `json:"reference"`
		Constraints []string `json:"constraints"`
	}{def.Reference, def.Constraints})
	if err != nil {
		return nil, err
	}
	say := func(what string, fault *pyFault) {
		if fault != nil && fault.Doubtful {
			what, fault.Text = what+" for Python "+f.Version, fault.Text+", a later Python may take it"
		}
		if fault != nil {
			faults = append(faults, fmt.Sprintf("%s: %s (line %d)", what, fault.Text, fault.Line))
		}
	}
	say("Reference must be valid Python code", f.Reference)
	for _, c := range f.Constraints {
		say("Constraints must be valid Python expressions", c)
	}
	return faults, nil
}
