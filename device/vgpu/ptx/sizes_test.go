package ptx

import "testing"

func TestSizes(t *testing.T) {
	for text, want := range map[string]int{
		".global .b32 e[2][3];": 24, ".global .v2 .b32 e[4];": 32, ".global .b8 e[-1];": -1,
		".global .b8 e[4294967296][4294967296];": -1, ".global .align -4 .b8 e[1];": -1,
	} {
		m, err := Parse(text)
		if (err != nil) != (want < 0) || err == nil && m.Vars[0].Size != want {
			t.Errorf("%s: got %+v, %v, want %d bytes", text, m, err, want)
		}
	}
}
