package device_test

import (
	"testing"

	"fisub/device"
)

// A compiler message about the machine says nothing about the sources.
func TestMachineFault(t *testing.T) {
	for _, tt := range []struct{ log, want string }{
		{"kernel.cu(3): warning: unused\n/tmp/x.s: fatal error: error writing to /tmp/x.s: No space left on device\n",
			"/tmp/x.s: fatal error: error writing to /tmp/x.s: No space left on device"},
		{"cc1plus: fatal error: opening output file x.o: Read-only file system", "cc1plus: fatal error: opening output file " +
			"x.o: Read-only file system"},
		{"virtual memory exhausted: Cannot allocate memory", "virtual memory exhausted: Cannot allocate memory"},
		{"g++: fatal error: Killed signal terminated program cc1plus", "g++: fatal error: Killed signal terminated program " +
			"cc1plus"},
		{"gcc: fatal error: Terminated signal terminated program cc1plus\ncompilation terminated.", "gcc: fatal error: " +
			"Terminated signal terminated program cc1plus"},
		{"collect2: fatal error: ld terminated with signal 9 [Killed]", "collect2: fatal error: ld terminated with signal 9 " +
			"[Killed]"},
		{"nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "nvcc error   : 'cicc' died due to signal 9 (Kill " +
			"signal)"},
		{"nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", ""},
		{"g++: internal compiler error: Segmentation fault signal terminated program cc1plus", ""},
		{"kernel.cu(3): error: identifier \"space\" is undefined", ""},
	} {
		if got := device.MachineFault(tt.log); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.log, got, tt.want)
		}
	}
}
