package trace

import "testing"

func TestCheckNames(t *testing.T) {
	for _, path := range []string{"main.py", "a/b-1.cu", "x+y-1@2.h", "v1.2/k.cuh", "./k.cu", ".hidden.py"} {
		s := &Solution{Sources: []SourceFile{{Path: path}}}
		if err := s.CheckNames(); err != nil {
			t.Errorf("%q: got %v", path, err)
		}
	}
	for _, path := range []string{"", "my kernel.cu", "a\n/k.cpp", "d\ncxx=touch$${IFS}x;c++\n#/k.cpp", "a:b.cu", "a|b.cu", "a$b.py",
		"k.cu\r", "a'b.h", `a"b.h`, "a`b`.h", "a;b.h", "a&b.h", "@arguments.cu", "-x.cu", "é.py", "a\x00b.py", "a\\b.py", "(a).py", "~a.py",
		"a*.py", "a?.py", "[a].py", "a#b.py", "a%b.py", "a!b.py", "{a}.py", "a<b.py", "a>b.py", "a^b.py", "a,b.cu", "a=b.cu", "\u202ea.py"} {
		s := &Solution{Sources: []SourceFile{{Path: "main.py"}, {Path: path}}}
		if err := s.CheckNames(); err == nil {
			t.Errorf("%q: got no error", path)
		}
	}
}
