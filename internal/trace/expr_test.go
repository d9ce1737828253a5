package trace_test

import (
	"errors"
	"strings"
	"testing"

	"fisub/internal/trace"
)

func TestSize(t *testing.T) {
	sizes := map[string]int{"n": 7, "h_2": 128}
	for expr, want := range map[string]int{
		"h_2 // 2": 64, "n*h_2+1": 897, "-n // 2 + 4": 0, "-7 % 3": 2, "2**3**2": 512, "-2**2 + 5": 1, "(n + 1) / 2": 4,
		"h_2 * 0.5": 64, "2 ** -1 * 4": 2, " ( ( n ) ) ": 7, "n - -n": 14, "2147483647": 1<<31 - 1,
	} {
		if got, err := trace.Size(expr, sizes); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", expr, got, err, want)
		}
	}
	for expr, want := range map[string]string{
		"": "ends too early", "n / 2": "7/2 is not a size", "n - 8": "-1 is not a size", "n // 0": "division by zero",
		"9**9**9": "exponent", "(n": "a parenthesis is open", "n n": `not understood at "n"`, "f(n)": "unknown axis",
		"n.real": "not understood", "2147483648": "is not a size", "0 ** -1": "exponent", "n)": "not understood",
		"(((9**63)**63)**63)**63": "more than 128 bits", strings.Repeat("(", 2000): "more than 1000 bytes",
	} {
		if got, err := trace.Size(expr, sizes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %d, %v, want %s", expr, got, err, want)
		}
	}
	var unknown trace.UnknownAxisError
	if _, err := trace.Size("n * m", sizes); !errors.As(err, &unknown) || unknown != "m" {
		t.Errorf("got %v", err)
	}
}
