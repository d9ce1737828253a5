package tools

import (
	"bytes"
	"testing"
)

func TestSummary(t *testing.T) {
	const head = `"ID","Kernel Name","Block Size","dram__bytes_read.sum","gpu__time_duration.sum","launch__grid_size"` +
		"\n" +
		`"","","","Mbyte","us",""` + "\n"
	for _, tc := range []struct{ name, raw, want, fault string }{
		{"two kernels behind ncu's messages", "==PROF== Connected\n" + head +
			`"0","void f<1>(float *, int)","(128, 1, 1)","33.8","17.1","4,096"` + "\n" +
			`"1","g(int)","(32, 1, 1)","n/a","2.0","1"` + "\n",
			"kernel      void f<1>(float *, int)\n  duration         17.1 us\n  DRAM read        33.8 Mbyte\n  grid          " +
				"   4,096 \n" +
				"kernel      g(int)\n  duration         2.0 us\n  DRAM read        n/a Mbyte\n  grid             1 \n", ""},
		{"no kernel", head, "", "the report holds no kernel"},
		{"short row", head + `"0","f()"` + "\n", "kernel      f()\n", ""},
		{"no report", "", "", "the report holds no kernel"},
	} {
		var out bytes.Buffer
		err := summary(&out, []byte(tc.raw))
		if got := out.String(); got != tc.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tc.name, got, tc.want)
		}
		if got := errText(err); got != tc.fault {
			t.Errorf("%s: got error %q, want %q", tc.name, got, tc.fault)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
