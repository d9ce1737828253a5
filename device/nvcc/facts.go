package nvcc

import (
	"cmp"
	"debug/elf"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"fisub/internal/plain"
)

//go:embed parameters.h
var parametersHeader []byte

// probe creates the include folder in dir that must precede tvm-ffi's headers.
func probe(dir string) error {
	folder := filepath.Join(dir, "probe", "tvm", "ffi")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "function.h"), parametersHeader, 0o644)
}

// parameters reads the parameters of the exported function, compiled with probe's header.
func parameters(f *elf.File, symbols []elf.Symbol, symbol string) *string {
	for _, s := range symbols {
		if s.Name != "__fisub_parameters_"+strings.TrimPrefix(symbol, symbolPrefix) || s.Size == 0 ||
			s.Size > 1024 || int(s.Section) >= len(f.Sections) {
			continue
		}
		section := f.Sections[s.Section]
		data := make([]byte, s.Size)
		if _, err := section.ReadAt(data, int64(s.Value-section.Addr)); err != nil || data[0] == 1 {
			return nil
		}
		text := string(data[:len(data)-1])
		return &text
	}
	return nil
}

var (
	ptxPlace   = regexp.MustCompile(`^ptxas (\S+), line (\d+); (error|fatal|warning)\s*: (.*)$`)
	ptxMessage = regexp.MustCompile(`^ptxas (error|fatal|warning)\s*: (.*)$`)
	ptxSymbol  = regexp.MustCompile(`'?(_Z\w+)'?`)
	ptxHex     = regexp.MustCompile(`\b0x([0-9a-f]+)\b`)
	ptxFile    = regexp.MustCompile(`(?m)^\s*\.file\s+(\d+) "([^"]*)"`)
	ptxLoc     = regexp.MustCompile(`^\s*\.loc\s+(\d+) (\d+) (\d+)(?:, function_name \S+, inlined_at (\d+) (\d+) (\d+))?`)
)

var nvccPlace = regexp.MustCompile(
	`^([^\s(:][^(:\n]*)\((\d+)\)(: (?:(?:catastrophic |fatal )?error|warning|remark)\b.*)$`)

// withColumns rewrites nvcc's messages as "kernel.cu:12:5: error: ...", like other compilers. nvcc marks the column
// below the preprocessed line, indented by two characters; both lines are replaced by the source's in files. An
// unknown column is left out.
func withColumns(log string, files map[string][]string) string {
	lines := strings.Split(log, "\n")
	for i := range max(0, len(lines)-2) {
		m, mark := nvccPlace.FindStringSubmatch(lines[i]), lines[i+2]
		if m == nil || strings.Trim(mark, " ^") != "" || strings.Index(mark, "^") < 2 {
			continue
		}
		col := strings.Index(mark, "^") - 1
		if own, n := files[filepath.Clean(m[1])], atoi(m[2]); n > 0 && n <= len(own) && len(lines[i+1]) > 2 {
			source := strings.TrimRight(own[n-1], " \t\r")
			if lines[i+1][2:] != source {
				one := Columns{m[1]: {n: aligned(lines[i+1][2:], source)}}
				col = one.Of(m[1], n, col)
			}
			lines[i+1] = "  " + strings.ReplaceAll(source, "\t", " ")
			lines[i+2] = strings.Repeat(" ", max(1, col)+1) + "^"
		}
		if col > 0 {
			lines[i] = fmt.Sprintf("%s:%s:%d%s", m[1], m[2], col, m[3])
		} else {
			lines[i+2] = ""
		}
	}
	return strings.Join(lines, "\n")
}

// readable rewrites ptxas's messages about the PTX in the folder kept, which has line information, like the compiler's
// own: with source lines below src, demangled names, decimal numbers.
func readable(log, kept, src string) string {
	if real, err := filepath.EvalSymlinks(src); err == nil { // the compiler uses the real path
		src = real
	}
	var lines []string
	for line := range strings.SplitSeq(log, "\n") {
		where, severity := "", ""
		if m := ptxPlace.FindStringSubmatch(line); m != nil {
			where, severity, line = ptxSource(m[1], atoi(m[2]), src), m[3], m[4]
		} else if m := ptxMessage.FindStringSubmatch(line); m != nil && !strings.Contains(m[2], "due to errors") {
			severity, line = m[1], m[2]
			if symbol := ptxSymbol.FindStringSubmatch(line); symbol != nil {
				where = entrySource(kept, symbol[1], src)
			}
		} else {
			lines = append(lines, line)
			continue
		}
		line = ptxSymbol.ReplaceAllStringFunc(line, func(s string) string {
			return "'" + Demangle([]string{strings.Trim(s, "'")})[0] + "'"
		})
		line = ptxHex.ReplaceAllStringFunc(line, func(s string) string {
			n, _ := strconv.ParseUint(s[2:], 16, 63)
			return fmt.Sprint(n)
		})
		if severity == "fatal" {
			severity = "error"
		}
		lines = append(lines, cmp.Or(where, "ptxas")+": "+severity+": "+line)
	}
	return strings.Join(lines, "\n")
}

// ptxSource returns the source place, "kernel.cu(12)" relative to src, of a line of PTX, or "".
func ptxSource(ptx string, line int, src string) string {
	text, err := plain.ReadFile(ptx, maxPTX)
	if err != nil {
		return ""
	}
	files := map[string]string{}
	for _, m := range ptxFile.FindAllStringSubmatch(string(text), -1) {
		if rel, err := filepath.Rel(src, m[2]); err == nil && filepath.IsLocal(rel) {
			files[m[1]] = rel
		}
	}
	lines := strings.Split(string(text), "\n")
	for i := min(line, len(lines)) - 1; i >= 0 && !strings.HasPrefix(lines[i], "}"); i-- {
		m := ptxLoc.FindStringSubmatch(lines[i])
		if m == nil {
			continue
		}
		if files[m[1]] != "" {
			return files[m[1]] + "(" + m[2] + ")"
		} else if files[m[4]] != "" {
			return files[m[4]] + "(" + m[5] + ")"
		}
	}
	return ""
}

// entrySource returns the place of a kernel, or "".
func entrySource(kept, symbol, src string) string {
	all, _ := filepath.Glob(filepath.Join(kept, "*.ptx"))
	for _, ptx := range all {
		text, err := os.ReadFile(ptx)
		if err != nil {
			continue
		}
		before, after, found := strings.Cut(string(text), ".entry "+symbol+"(")
		if body := strings.Index(after, ".loc"); found && body >= 0 {
			return ptxSource(ptx, strings.Count(before+after[:body], "\n")+1, src)
		}
	}
	return ""
}
