package sass

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"path"
	"slices"
)

// A table maps offsets in sections to lines.
type table struct {
	files []string
	rows  map[elf.SectionIndex][]row // by address
}

type row struct {
	address uint64
	file    int32 // index in files, -1: unknown
	line    int32
}

var errTable = errors.New("sass: damaged line table")

// readLines reads a line table, which is empty if the section does not exist. The addresses in the table are relative
// to the function that a relocation names.
func readLines(f *elf.File, cubin []byte, name string, symbols []elf.Symbol) (*table, error) {
	t := &table{rows: map[elf.SectionIndex][]row{}}
	s := f.Section(name)
	if s == nil {
		return t, nil
	}
	data, err := contents(cubin, s)
	if err != nil {
		return nil, err
	}
	targets := map[int]elf.Symbol{} // by offset in data
	for _, r := range f.Sections {
		size := 0
		switch {
		case r.Name == ".rela"+name && r.Type == elf.SHT_RELA:
			size = 24
		case r.Name == ".rel"+name && r.Type == elf.SHT_REL:
			size = 16
		default:
			continue
		}
		list, err := contents(cubin, r)
		if err != nil {
			return nil, err
		}
		for ; len(list) >= size; list = list[size:] {
			i := uint64(binary.LittleEndian.Uint32(list[12:])) // debug/elf omits symbol 0
			if i > 0 && i <= uint64(len(symbols)) {
				targets[int(binary.LittleEndian.Uint64(list))] = symbols[i-1]
			}
		}
	}
	r := &reader{data: data}
	for r.at < len(r.data) && !r.bad {
		t.unit(r, targets)
	}
	if r.bad {
		return nil, errTable
	}
	for _, rows := range t.rows {
		slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.address, b.address) })
	}
	return t, nil
}

// each calls set for the instructions of a section that have a line.
func (t *table) each(section elf.SectionIndex, insts []Inst, set func(in *Inst, file string, line int)) {
	rows, i := t.rows[section], 0
	for j := range insts {
		for i < len(rows) && rows[i].address <= uint64(insts[j].Offset) {
			i++
		}
		if i == 0 || rows[i-1].line <= 0 { // line 0 ends a sequence
			continue
		}
		file := ""
		if n := rows[i-1].file; n >= 0 {
			file = t.files[n]
		}
		set(&insts[j], file, int(rows[i-1].line))
	}
}

// unit reads the header and the program of one compilation unit, in DWARF 2 to 4. NVIDIA's extended opcodes name the
// call of an inlined function; the row itself has the innermost line.
func (t *table) unit(r *reader, targets map[int]elf.Symbol) {
	length := int(r.fixed(4))
	if length > len(r.data)-r.at {
		r.bad = true
	}
	end := r.at + length
	version := r.fixed(2)
	program := int(r.fixed(4))
	program += r.at
	minimum := r.fixed(1)
	if version >= 4 {
		r.fixed(1)
	}
	r.fixed(1)
	base, span, first := int64(int8(r.fixed(1))), int64(r.fixed(1)), int(r.fixed(1))
	if r.bad || version < 2 || version > 4 || span == 0 || first == 0 || program > end {
		r.bad = true
		return
	}
	lengths := make([]int, first)
	for i := 1; i < first; i++ {
		lengths[i] = int(r.fixed(1))
	}
	folders := []string{""}
	for s := r.text(); s != ""; s = r.text() {
		folders = append(folders, s)
	}
	offset := len(t.files)
	for s := r.text(); s != ""; s = r.text() {
		if n := r.uleb(); n > 0 && n < uint64(len(folders)) && len(s)+len(folders[n]) < maxPath {
			s = path.Join(folders[n], s)
		}
		r.uleb()
		r.uleb()
		t.files = append(t.files, s)
	}
	var at elf.Symbol
	address, file, line := uint64(0), int64(1), int64(1)
	emit := func(line int64) {
		w := row{address: at.Value + address, file: -1}
		if line > 0 && line < 1<<31 {
			w.line = int32(line)
		}
		if n := len(t.files) - offset; file >= 1 && file <= int64(n) {
			w.file = int32(offset + int(file) - 1)
		}
		t.rows[at.Section] = append(t.rows[at.Section], w)
	}
	for r.at = max(r.at, program); r.at < end && !r.bad; {
		switch op := int(r.fixed(1)); {
		case op >= first:
			address += uint64(int64(op-first)/span) * minimum
			line += base + int64(op-first)%span
			emit(line)
		case op == 0:
			n := r.uleb()
			if n == 0 || n > uint64(end-r.at) {
				r.bad = true
				return
			}
			next := r.at + int(n)
			switch r.fixed(1) {
			case 1:
				emit(0)
				at, address, file, line = elf.Symbol{}, 0, 1, 1
			case 2:
				at, address = targets[r.at], 0
			}
			r.at = next
		case op == 1:
			emit(line)
		case op == 2:
			address += r.uleb() * minimum
		case op == 3:
			line += r.sleb()
		case op == 4:
			file = int64(r.uleb())
		case op == 8:
			address += uint64(int64(255-first)/span) * minimum
		case op == 9:
			address += r.fixed(2)
		default:
			for range lengths[op] {
				r.uleb()
			}
		}
	}
	r.at = end
}

// maxPath is the longest file name that is joined with its folder.
const maxPath = 4096

// A reader reads the parts of a table. At the end of the data it sets bad and returns zeros.
type reader struct {
	data []byte
	at   int
	bad  bool
}

func (r *reader) fixed(n int) (v uint64) {
	if n > len(r.data)-r.at {
		r.bad = true
		return 0
	}
	for i := range n {
		v |= uint64(r.data[r.at+i]) << (8 * i)
	}
	r.at += n
	return v
}

func (r *reader) uleb() (v uint64) {
	for shift := 0; ; shift += 7 {
		b := r.fixed(1)
		v |= b & 0x7f << shift
		if b&0x80 == 0 {
			return v
		}
	}
}

func (r *reader) sleb() (v int64) {
	for shift := 0; ; {
		b := r.fixed(1)
		v |= int64(b) & 0x7f << shift
		if shift += 7; b&0x80 == 0 {
			if shift < 64 && b&0x40 != 0 {
				v |= -1 << shift
			}
			return v
		}
	}
}

func (r *reader) text() string {
	for i := r.at; i < len(r.data); i++ {
		if r.data[i] == 0 {
			s := string(r.data[r.at:i])
			r.at = i + 1
			return s
		}
	}
	r.bad = true
	return ""
}
