package tools

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"fisub/internal/plain"
)

// A Record is the machine-readable output of `fisub sanitize` and `fisub profile`, one JSON object per line.
type Record struct {
	Tool     string           `json:"tool"` // several with the same result are separated by commas
	Workload string           `json:"workload"`
	Verdict  string           `json:"verdict"` // "clean", "findings", "profiled" or an error; "" with Part
	Log      string           `json:"log"`
	Kernels  []ProfiledKernel `json:"kernels,omitempty"`
	Report   string           `json:"report,omitempty"` // path
	Part     []byte           `json:"part,omitempty"`   // the next bytes of the report; Kernels follow the last part
}

// ReadRecord decodes a line. ok reports whether it is a Record.
func ReadRecord(text []byte) (r Record, ok bool) {
	err := json.Unmarshal(text, &r)
	return r, err == nil && r.Tool != ""
}

// Write writes the line to w.
func (r Record) Write(w io.Writer) error {
	data, err := json.Marshal(r)
	if err == nil {
		_, err = fmt.Fprintf(w, "%s\n", data)
	}
	return err
}

const (
	partSize  = 256 << 10
	maxReport = 256 << 20 // largest report, in bytes
)

// Send writes the report in file to w, in parts.
func Send(w io.Writer, file string) error {
	f, err := plain.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		part := make([]byte, partSize)
		n, err := io.ReadFull(f, part)
		if n > 0 {
			if err := (Record{Tool: "ncu", Part: part[:n]}).Write(w); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return nil
		default:
			return err
		}
	}
}

// A ReportFile collects the parts of a report in a file.
type ReportFile struct {
	Path string
	size int
}

// Take appends a part.
func (r *ReportFile) Take(part []byte) error {
	if r.size += len(part); r.size > maxReport {
		return fmt.Errorf("report larger than %d bytes", maxReport)
	}
	f, err := plain.OpenFile(r.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(part)
	return cmp.Or(err, f.Close())
}
