package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"fisub/internal/plain"
)

// ReadDefinition reads a definition file. Invalid content is a *ValidationError that names path.
func ReadDefinition(path string) (*Definition, []Warning, error) {
	return readFile(path, DecodeDefinition)
}

// ReadSolution reads a solution file. Invalid content is a *ValidationError that names path.
func ReadSolution(path string) (*Solution, []Warning, error) {
	return readFile(path, DecodeSolution)
}

// ReadWorkload reads a file with one workload. Invalid content is a *ValidationError that names path.
func ReadWorkload(path string) (*Workload, []Warning, error) {
	return readFile(path, DecodeWorkload)
}

// ReadTrace reads a file with one trace. Invalid content is a *ValidationError that names path.
func ReadTrace(path string) (*Trace, []Warning, error) {
	return readFile(path, DecodeTrace)
}

// Keys returns the keys of the object in data, the content of the file called path. Its error is a *ValidationError if
// data is not JSON as this package reads it.
func Keys(path string, data []byte) ([]string, error) {
	v, syntax := parse(data)
	if syntax != nil {
		d := &decoder{lines: lines{data: data}}
		d.fault(syntax.pos, "Invalid JSON: "+syntax.text)
		return nil, &ValidationError{File: path, Faults: d.faults}
	}
	var keys []string
	for _, k := range v.keys {
		keys = append(keys, k.name)
	}
	return keys, nil
}

func readFile[T any](path string, decode func([]byte) (*T, []Warning, error)) (*T, []Warning, error) {
	data, err := plain.ReadFile(path, MaxBytes)
	if err != nil {
		return nil, nil, err
	}
	v, warnings, err := decode(data)
	return v, warnings, moved(path, 0, warnings, err)
}

// moved sets the file of warnings and of a *ValidationError to path, and adds by to their lines.
func moved(path string, by int, warnings []Warning, err error) error {
	for i := range warnings {
		warnings[i].File = path
		warnings[i].Line += by
	}
	if invalid, ok := errors.AsType[*ValidationError](err); ok {
		invalid.File = path
		for i := range invalid.Faults {
			invalid.Faults[i].Line += by
		}
	}
	return err
}

// ReadTraces reads a .jsonl file of workloads or traces, and skips blank lines. Its error joins a *ValidationError for
// each invalid line; the traces of the other lines are returned with it.
func ReadTraces(path string) ([]*Trace, []Warning, error) {
	f, err := plain.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	return DecodeTraces(f, path)
}

// DecodeTraces is ReadTraces of an open file, called path in messages.
func DecodeTraces(from io.Reader, path string) (traces []*Trace, warnings []Warning, err error) {
	var errs []error
	r := bufio.NewReaderSize(from, 1<<16)
	for line := 0; ; line++ {
		data, err := readLine(r)
		if text := bytes.TrimSpace(data); len(text) > 0 {
			t, w, invalid := DecodeTrace(bytes.TrimSuffix(data, []byte("\n")))
			if invalid = moved(path, line, w, invalid); invalid != nil {
				errs = append(errs, invalid)
			} else {
				traces = append(traces, t)
			}
			warnings = append(warnings, w[:min(len(w), maxFaults-min(len(warnings), maxFaults))]...)
		}
		if errors.Is(err, io.EOF) {
			return traces, warnings, errors.Join(errs...)
		}
		if err != nil {
			return traces, warnings, errors.Join(append(errs, err)...)
		}
		if len(errs) == maxFaults {
			return traces, warnings, errors.Join(append(errs, fmt.Errorf("%s: more than %d invalid lines", path, maxFaults))...)
		}
	}
}

// readLine reads up to and including the next newline. It truncates lines longer than MaxBytes.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(line) <= MaxBytes {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}
