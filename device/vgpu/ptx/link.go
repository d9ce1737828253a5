package ptx

import (
	"errors"
	"fmt"
)

// Link parses the PTX of units that were compiled separately (nvcc -rdc=true), and joins them. A name without linkage
// belongs to its unit; of weak definitions the first one is used. The lines of variables and functions are those of
// their own unit.
func Link(texts []string) (*Module, error) {
	if len(texts) == 0 {
		return nil, errors.New("no PTX")
	}
	l := linker{all: &Module{Files: map[int]string{}, Strings: map[string]string{}}, vars: map[string]int{},
		funcs: map[string]int{}, units: map[string]int{}}
	units := make([]*Module, len(texts))
	for i, text := range texts {
		m, err := Parse(text)
		if err != nil {
			return nil, fmt.Errorf("unit %d: %w", i+1, err)
		}
		for name := range m.names() {
			l.units[name]++
		}
		units[i] = m
	}
	for i, m := range units {
		if err := l.add(m, i); err != nil {
			return nil, fmt.Errorf("unit %d: %w", i+1, err)
		}
	}
	return l.all, nil
}

type linker struct {
	all         *Module
	vars, funcs map[string]int // indexes by name
	units       map[string]int // by name: the number of units that have it
}

// names returns the names of a unit's variables and functions.
func (m *Module) names() map[string]bool {
	all := map[string]bool{}
	for _, v := range m.Vars {
		all[v.Name] = true
	}
	for _, f := range m.Funcs {
		all[f.Name] = true
	}
	return all
}

// fileStep is more than the number of files of a unit.
const fileStep = 1 << 20

func (l *linker) add(m *Module, unit int) error {
	u := unitNames{unit: unit, names: map[string]string{}, seen: map[*Loc]bool{}}
	for _, v := range m.Vars {
		if l.units[v.Name] > 1 && v.Linkage == Internal && !v.Extern {
			u.names[v.Name] = fmt.Sprintf("%s$%d", v.Name, unit)
		}
	}
	for _, f := range m.Funcs {
		if l.units[f.Name] > 1 && f.Linkage == Internal && f.HasBody && !f.Entry {
			u.names[f.Name] = fmt.Sprintf("%s$%d", f.Name, unit)
		}
	}
	for n, name := range m.Files {
		l.all.Files[n+unit*fileStep] = name
	}
	for label, text := range m.Strings {
		l.all.Strings[u.label(label)] = text
	}
	if unit == 0 {
		l.all.Version, l.all.Target = m.Version, m.Target
	}
	for _, v := range m.Vars {
		u.variable(v)
		i, taken := l.vars[v.Name]
		switch {
		case !taken:
			l.vars[v.Name] = len(l.all.Vars)
			l.all.Vars = append(l.all.Vars, v)
		case l.all.Vars[i].Extern && !v.Extern:
			l.all.Vars[i] = v
		case v.Linkage == Visible && l.all.Vars[i].Linkage == Visible && !v.Extern:
			return fmt.Errorf("multiple definitions of %s", v.Name)
		}
	}
	for _, f := range m.Funcs {
		u.function(f)
		i, taken := l.funcs[f.Name]
		switch {
		case !taken:
			l.funcs[f.Name] = len(l.all.Funcs)
			l.all.Funcs = append(l.all.Funcs, f)
		case !l.all.Funcs[i].HasBody && f.HasBody:
			l.all.Funcs[i] = f
		case f.HasBody && f.Linkage != Weak && l.all.Funcs[i].Linkage != Weak:
			return fmt.Errorf("multiple definitions of %s", f.Name)
		}
	}
	return nil
}

// A unitNames renames what belongs to one unit: names, files, and labels of strings.
type unitNames struct {
	unit  int
	names map[string]string
	seen  map[*Loc]bool
}

func (u *unitNames) name(s *string) {
	if to, ok := u.names[*s]; ok {
		*s = to
	}
}

func (u *unitNames) label(s string) string { return fmt.Sprintf("%d:%s", u.unit, s) }

func (u *unitNames) variable(v *Var) {
	u.name(&v.Name)
	for i := range v.Refs {
		u.name(&v.Refs[i].Name)
	}
}

func (u *unitNames) function(f *Func) {
	u.name(&f.Name)
	own := map[string]bool{}
	for _, list := range [][]*Var{f.Params, f.Returns, f.Vars} {
		for _, v := range list {
			own[v.Name] = true
		}
	}
	for label := range f.Labels {
		own[label] = true
	}
	for i := range f.Body {
		in := &f.Body[i]
		u.operands(in.Args, own)
		u.location(&in.Loc)
	}
}

func (u *unitNames) operands(list []Operand, own map[string]bool) {
	for i := range list {
		o := &list[i]
		if o.Kind == Symbol && !own[o.Name] {
			u.name(&o.Name)
		}
		u.operands(o.Elems, own)
	}
}

func (u *unitNames) location(at *Loc) {
	for ; at != nil && !u.seen[at]; at = at.Via {
		u.seen[at] = true
		if at.File != 0 || at.Line != 0 {
			at.File += u.unit * fileStep
		}
		if at.Func != "" {
			at.Func = u.label(at.Func)
		}
	}
}
