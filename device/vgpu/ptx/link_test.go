package ptx

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const head = ".version 9.0\n.target sm_90\n.address_size 64\n"

func TestLink(t *testing.T) {
	m, err := Link([]string{head + `.file 1 "a.cu"
.extern .global .align 4 .u32 shared_var;
.global .align 1 .b8 $str[2] = {65, 0};
.extern .func f ();
.weak .func g () { ret; }
.visible .entry k () { .reg .b64 %rd<2>; .loc 1 3 4
mov.u64 %rd1, $str; call f, (); ret; }`,
		head + `.file 1 "b.cu"
.visible .global .align 4 .u32 shared_var = 7;
.global .align 1 .b8 $str[2] = {66, 0};
.visible .global .align 8 .u64 pointer = $str;
.weak .func g () { .reg .b32 %r<2>; mov.u32 %r1, 1; ret; }
.visible .func f () { .reg .b64 %rd<2>; .loc 1 8 9
mov.u64 %rd1, $str; ret; }`})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range m.Vars {
		names = append(names, v.Name)
	}
	if want := []string{"shared_var", "$str$0", "$str$1", "pointer"}; !slices.Equal(names, want) {
		t.Errorf("got variables %v, want %v", names, want)
	}
	if v := m.Vars[0]; v.Extern || v.Init[0] != 7 {
		t.Errorf("shared_var is %+v, want unit b's", v)
	}
	if got := m.Vars[3].Refs[0].Name; got != "$str$1" {
		t.Errorf("pointer refers to %s, want $str$1", got)
	}
	for name, want := range map[string]string{"f": "$str$1 b.cu:8:9", "k": "$str$0 a.cu:3:4"} {
		f := m.Funcs[m.Index()[name]]
		in := f.Body[0]
		at := in.Loc
		if got := fmt.Sprintf("%s %s:%d:%d", in.Args[1].Name, m.Files[at.File], at.Line, at.Col); got != want {
			t.Errorf("%s uses %s, want %s", name, got, want)
		}
	}
	if n := len(m.Funcs[m.Index()["g"]].Body); n != 1 {
		t.Errorf("g has %d instructions, want unit a's 1", n)
	}
}

func TestLinkTwice(t *testing.T) {
	for _, unit := range []string{".visible .func f () { ret; }", ".visible .global .align 4 .u32 v = 1;"} {
		_, err := Link([]string{head + unit, head + unit})
		if err == nil || !strings.Contains(err.Error(), "unit 2: multiple definitions of ") {
			t.Errorf("%s: got %v", unit, err)
		}
	}
}

// A name that one unit keeps to itself is not another unit's, whichever comes first.
func TestLinkInternal(t *testing.T) {
	own := head + `.global .align 4 .u32 v = 1;
.func f () { ret; }
.visible .entry a () { .reg .b64 %rd<2>; mov.u64 %rd1, v; call f, (); ret; }`
	public := head + `.visible .global .align 4 .u32 v = 2;
.visible .func f () { .reg .b32 %r<2>; mov.u32 %r1, 1; ret; }
.visible .entry b () { .reg .b64 %rd<2>; mov.u64 %rd1, v; call f, (); ret; }`
	for _, units := range [][]string{{own, public}, {public, own}} {
		m, err := Link(units)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]byte{"a": 1, "b": 2} {
			used := m.Funcs[m.Index()[name]].Body[0].Args[1].Name
			i := slices.IndexFunc(m.Vars, func(v *Var) bool { return v.Name == used })
			if i < 0 || m.Vars[i].Init[0] != want {
				t.Errorf("%s uses %s, want the variable with %d", name, used, want)
			}
			call := m.Funcs[m.Index()[name]].Body[1].Args
			f := m.Funcs[m.Index()[call[0].Name]]
			if len(f.Body) != int(want) {
				t.Errorf("%s calls %s with %d instructions, want %d", name, f.Name, len(f.Body), want)
			}
		}
	}
}
