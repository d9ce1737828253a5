package source

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"path"

	"fisub/internal/plain"
	"fisub/internal/trace"
)

// A Python runs a script in CPython with only its standard library, and returns its output. Its error is a short
// reason.
type Python func(script string, stdin []byte) (stdout []byte, err error)

//go:embed pyfacts.py
var pyFacts string

// A pyPlace is a place in a source; Line is 0 for the whole source.
type pyPlace struct{ Line, Column int }

// A pyFault is an error reported by CPython. It is doubtful if a later CPython may accept the code.
type pyFault struct {
	pyPlace
	Text     string
	Doubtful bool
}

// facts are the output of pyfacts.py for a solution or a definition.
type facts struct {
	Version string // of CPython, such as "3.12"
	Files   []pyFile
	Entry   *pyEntry // nil if its file cannot be read

	Reference   *pyFault
	Constraints []*pyFault
}

type pyFile struct {
	Path    string
	Reached bool     // the entry imports it
	Error   *pyFault // if set, Facts is empty
	Facts   []pyFact
}

// A pyFact is an import, or a use of torch.ops.Name.
type pyFact struct {
	pyPlace
	Kind, Name string // Kind is "import" or "op"
	Reached    bool   // the entry may run it

	// Of an import of the module Name:
	Names   []string // imported names
	Level   int      // number of leading dots
	Own     bool     // an absolute import of a file of the solution
	Helped  bool     // guarded, also imported relatively, or the search path changes
	Guarded bool     // inside a try statement
	Called  bool     // code that the entry reaches calls into it
	About   bool     // only its path or version is read
}

// A pyEntry holds the bindings of the entry's name in the entry file.
type pyEntry struct {
	Defs      []pyFunction
	Class     *pyPlace
	Bound     bool     // by any other statement
	Functions []string // names of the top-level functions of the file
}

// A pyFunction takes Least to Most positional arguments; Most is -1 for any number. Keyword is a keyword-only parameter
// without default.
type pyFunction struct {
	pyPlace
	Least, Most int
	Keyword     string
	IsAsync     bool `json:"is_async"`
	Decorators  []string
	Returns     string // "tuple", "none", "other", or "" if the annotation leaves it open
	Values      int    // number of values of a tuple
}

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
		return nil, fmt.Errorf("invalid JSON from python: %v", err)
	}
	return &f, nil
}

// solutionFacts returns the facts of the Python sources of a solution with that entry; the entry may be "".
func solutionFacts(python Python, sol *trace.Solution, entry, symbol string) (*facts, error) {
	request := struct {
		Sources []trace.SourceFile `json:"sources"`
		Entry   string             `json:"entry"`
		Symbol  string             `json:"symbol"`
	}{Entry: entry, Symbol: symbol}
	for _, s := range sol.Sources {
		if plain.Suffix(path.Base(s.Path)) == ".py" {
			request.Sources = append(request.Sources, s)
		}
	}
	if request.Sources == nil {
		return &facts{}, nil
	}
	return ask(python, request)
}

// Definition returns the faults of a definition's reference and constraints as Python code. It fails if they could not
// be checked.
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
			what, fault.Text = what+" for Python "+f.Version, fault.Text+"; a later Python may accept it"
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
