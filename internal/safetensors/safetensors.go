// Package safetensors reads and writes safetensors files: a little-endian header length, a JSON header, and the
// tensors' bytes without gaps. It maps files, and checks the whole header before it returns a tensor. It knows nothing
// of workloads.
package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"fisub/internal/cache"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/tensor"
)

const (
	maxHeader   = 100_000_000 // the format's own limit, in bytes
	metadataKey = "__metadata__"
)

// bits maps the format's dtypes to their element widths.
var bits = map[string]int{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// names maps the dtypes that a definition may use to the format's names.
var names = map[tensor.DType]string{
	tensor.Float32: "F32", tensor.Float16: "F16", tensor.BFloat16: "BF16", tensor.Float8E4M3FN: "F8_E4M3",
	tensor.Float8E5M2: "F8_E5M2", tensor.Float4E2M1: "F4", tensor.Int64: "I64", tensor.Int32: "I32",
	tensor.Int16: "I16", tensor.Int8: "I8", tensor.Bool: "BOOL",
}

// A File is a mapped safetensors file. It is safe for concurrent use until Close. Truncating the file while it is open
// makes reads fault.
type File struct {
	path     string
	mapping  []byte
	data     int // offset of the first tensor byte
	entries  map[string]entry
	metadata map[string]string
}

type entry struct {
	dtype      string
	shape      []int
	begin, end int // offsets from the first tensor byte
}

// An LFSPointerError reports a Git LFS pointer instead of the file itself.
type LFSPointerError struct {
	Path string
	Size int64 // of the content, in bytes
}

func (e *LFSPointerError) Error() string {
	return fmt.Sprintf("%s: is a Git LFS pointer, not the file itself (%d bytes)", e.Path, e.Size)
}

// Advice returns the hint of the error.
func (e *LFSPointerError) Advice() string {
	if dir := git.Root(filepath.Dir(e.Path)); dir != "" {
		rel, _ := filepath.Rel(dir, e.Path)
		return fmt.Sprintf("run git -C %s lfs pull --include %s", dir, filepath.ToSlash(rel))
	}
	return "run git lfs pull --include " + filepath.Base(e.Path) + ", in the original clone"
}

// A DamagedError reports a file that is truncated or has another format.
type DamagedError struct {
	Path string
	Err  error
}

func (e *DamagedError) Error() string { return e.Path + ": " + e.Err.Error() }
func (e *DamagedError) Unwrap() error { return e.Err }

// Advice returns the hint of the error.
func (e *DamagedError) Advice() string {
	return "the file is truncated or damaged: fetch it again"
}

// Open maps the file and checks its header. It returns an *LFSPointerError for a Git LFS pointer, and a *DamagedError
// for another invalid file.
func Open(path string) (*File, error) {
	f, err := plain.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	size := st.Size()
	if size < 8 || size > int64(^uint(0)>>1) {
		return nil, &DamagedError{path, fmt.Errorf("%d bytes are too few for a safetensors file", size)}
	}
	mapping, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", path, err)
	}
	file := &File{path: path, mapping: mapping}
	if err := file.parse(); err != nil {
		file.Close()
		if pointer, ok := errors.AsType[*LFSPointerError](err); ok {
			return nil, pointer
		}
		return nil, &DamagedError{path, err}
	}
	return file, nil
}

// Close unmaps the file. Its tensors must not be used afterwards.
func (f *File) Close() error {
	if f.mapping == nil {
		return nil
	}
	err := unix.Munmap(f.mapping)
	f.mapping, f.entries = nil, nil
	return err
}

// Metadata returns the header's text entries, or nil.
func (f *File) Metadata() map[string]string { return f.metadata }

// Has reports whether the file contains a tensor called name.
func (f *File) Has(name string) bool {
	_, ok := f.entries[name]
	return ok
}

// Tensor returns a tensor that aliases the mapping. The caller must not modify it, or use it after Close.
func (f *File) Tensor(name string) (*tensor.Tensor, error) {
	e, ok := f.entries[name]
	if !ok {
		return nil, fmt.Errorf("%s: no tensor %q", f.path, name)
	}
	for d, s := range names {
		if s == e.dtype {
			begin, end := f.data+e.begin, f.data+e.end
			return &tensor.Tensor{DType: d, Shape: slices.Clone(e.shape), Data: f.mapping[begin:end:end]}, nil
		}
	}
	return nil, fmt.Errorf("%s: tensor %q: dtype %s is not supported in definitions", f.path, name, e.dtype)
}

// Offset returns the file offset of a tensor's first byte. ok is false if the tensor does not exist.
func (f *File) Offset(name string) (offset int64, ok bool) {
	e, ok := f.entries[name]
	return int64(f.data + e.begin), ok
}

func (f *File) parse() error {
	if bytes.HasPrefix(f.mapping, []byte("version https://git-lfs.github.com/spec/")) {
		return pointer(f.path, f.mapping)
	}
	n := binary.LittleEndian.Uint64(f.mapping)
	if n > maxHeader {
		return fmt.Errorf("header of %d bytes, more than %d", n, maxHeader)
	}
	if n > uint64(len(f.mapping)-8) {
		return fmt.Errorf("header of %d bytes in a file of %d", n, len(f.mapping))
	}
	f.data = 8 + int(n)
	header := f.mapping[8:f.data]
	if len(header) == 0 || header[0] != '{' {
		return errors.New("header does not begin with {")
	}
	if !utf8.Valid(header) {
		return errors.New("header is not UTF-8")
	}
	if err := f.parseHeader(header); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	return f.checkLayout()
}

func pointer(path string, text []byte) error {
	p := &LFSPointerError{Path: path}
	for line := range strings.Lines(string(text[:min(len(text), 1024)])) {
		if size, ok := strings.CutPrefix(strings.TrimSpace(line), "size "); ok {
			p.Size, _ = strconv.ParseInt(size, 10, 64)
		}
	}
	return p
}

func (f *File) parseHeader(header []byte) error {
	var all map[string]jsontext.Value
	if err := decode(header, &all); err != nil {
		return err
	}
	f.entries = map[string]entry{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var err error
		if name == metadataKey {
			err = decode(all[name], &f.metadata)
		} else {
			f.entries[name], err = parseEntry(all[name])
		}
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

func parseEntry(text jsontext.Value) (e entry, err error) {
	var given struct {
		DType   *string `json:"dtype"`
		Shape   []int   `json:"shape"`
		Offsets []int   `json:"data_offsets"`
	}
	if err := decode(text, &given); err != nil {
		return e, err
	}
	if given.DType == nil || given.Shape == nil || given.Offsets == nil {
		return e, errors.New("dtype, shape or data_offsets is missing")
	}
	e = entry{dtype: *given.DType, shape: given.Shape}
	if len(given.Offsets) != 2 || given.Offsets[0] < 0 || given.Offsets[0] > given.Offsets[1] {
		return e, fmt.Errorf("data_offsets %v", given.Offsets)
	}
	e.begin, e.end = given.Offsets[0], given.Offsets[1]
	width, ok := bits[e.dtype]
	if !ok {
		return e, fmt.Errorf("unknown dtype %q", e.dtype)
	}
	n, ok := tensor.Elements(e.shape)
	if !ok || n > (1<<62)/width {
		return e, fmt.Errorf("shape %v is out of range", e.shape)
	}
	if n*width%8 != 0 || n*width/8 != e.end-e.begin {
		return e, fmt.Errorf("%d bytes of data for shape %v of %s", e.end-e.begin, e.shape, e.dtype)
	}
	return e, nil
}

// noNull rejects null, which the format forbids but package json ignores.
var noNull = json.WithUnmarshalers(json.UnmarshalFromFunc(func(d *jsontext.Decoder, _ any) error {
	if d.PeekKind() == 'n' {
		return &json.SemanticError{JSONKind: 'n'}
	}
	return errors.ErrUnsupported
}))

// decode decodes JSON into v. Duplicate and unknown keys are errors.
func decode(text []byte, v any) error {
	err := json.Unmarshal(text, v, json.RejectUnknownMembers(true), noNull)
	var syntax *jsontext.SyntacticError
	var wrong *json.SemanticError
	switch {
	case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Errorf("duplicate key %q", syntax.JSONPointer.LastToken())
	case errors.As(err, &syntax):
		return syntax.Err
	case errors.As(err, &wrong) && errors.Is(err, json.ErrUnknownName):
		return fmt.Errorf("%q: not a key of a tensor", wrong.JSONPointer.LastToken())
	case errors.As(err, &wrong) && wrong.JSONValue != nil:
		return fmt.Errorf("%s is not an integer in range", wrong.JSONValue)
	case errors.As(err, &wrong):
		return fmt.Errorf("%v is not of the right type", wrong.JSONKind)
	}
	return err
}

// checkLayout checks that the tensors cover all data without overlaps.
func (f *File) checkLayout() error {
	order := slices.SortedFunc(maps.Keys(f.entries), func(a, b string) int {
		x, y := f.entries[a], f.entries[b]
		return cmp.Or(x.begin-y.begin, x.end-y.end, strings.Compare(a, b))
	})
	end := 0
	for _, name := range order {
		e := f.entries[name]
		switch {
		case e.begin < end:
			return fmt.Errorf("tensor %q: data overlaps another tensor", name)
		case e.begin > end:
			return fmt.Errorf("tensor %q: %d unused bytes before its data", name, e.begin-end)
		}
		end = e.end
	}
	switch have := len(f.mapping) - f.data; {
	case end > have:
		return fmt.Errorf("truncated: %d bytes of data, the header describes %d", have, end)
	case end < have:
		return fmt.Errorf("%d bytes after the last tensor", have-end)
	}
	return nil
}

// A Named is a tensor to write, with its name.
type Named struct {
	Name   string
	Tensor *tensor.Tensor
}

// Write writes the tensors in order to path, through a temporary file. The data starts at a multiple of eight bytes.
// Folders are not created.
func Write(path string, tensors []Named, metadata map[string]string) error {
	return cache.Write(path, 0o644, func(f io.Writer) error {
		if err := write(f, tensors, metadata); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
}

func write(w io.Writer, tensors []Named, metadata map[string]string) error {
	header, err := header(tensors, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range tensors {
		if _, err := w.Write(t.Tensor.Data); err != nil {
			return err
		}
	}
	return nil
}

// header returns the header of a file, padded to a multiple of 8 bytes.
func header(tensors []Named, metadata map[string]string) ([]byte, error) {
	b := append(make([]byte, 8), '{')
	if len(metadata) > 0 {
		text, err := json.Marshal(metadata, json.Deterministic(true))
		if err != nil {
			return nil, err
		}
		b = append(append(b, `"__metadata__":`...), text...)
	}
	seen := map[string]bool{metadataKey: true}
	offset := 0
	for _, t := range tensors {
		if seen[t.Name] || !utf8.ValidString(t.Name) {
			return nil, fmt.Errorf("tensor name %q is taken or not UTF-8", t.Name)
		}
		seen[t.Name] = true
		size, ok := t.Tensor.DType.Bytes(t.Tensor.Len())
		if !ok || t.Tensor.Data != nil && size != len(t.Tensor.Data) || t.Tensor.Len()*t.Tensor.DType.Bits()%8 != 0 {
			return nil, fmt.Errorf("tensor %q: %d bytes of data for shape %v of %v", t.Name, len(t.Tensor.Data), t.Tensor.Shape,
				t.Tensor.DType)
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, err
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		shape := strings.ReplaceAll(fmt.Sprint(t.Tensor.Shape), " ", ",")
		b = fmt.Appendf(b, `%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, names[t.Tensor.DType], shape, offset,
			offset+size)
		offset += size
	}
	b = append(b, '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	if len(b)-8 > maxHeader {
		return nil, fmt.Errorf("header of %d bytes, more than %d", len(b)-8, maxHeader)
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-8))
	return b, nil
}
