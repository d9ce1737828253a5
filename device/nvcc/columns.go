package nvcc

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"fisub/internal/plain"
)

// nvcc's columns refer to the preprocessed line, with macros such as __shared__ expanded and comments and spaces
// removed. These functions map them to the user's line.

// Columns maps file and line to pairs of columns, one per token: the compiler's, and the source's (0 if unknown).
// Lines unchanged by preprocessing are left out.
type Columns map[string]map[int][][2]int

// Of returns the source column for a compiler's column, 0 if unknown.
func (c Columns) Of(file string, line, col int) int {
	tokens, ok := c[file][line]
	if !ok {
		return col
	}
	i, found := slices.BinarySearchFunc(tokens, col, func(t [2]int, col int) int { return t[0] - col })
	if !found {
		i--
	}
	if i < 0 {
		return 0
	}
	return tokens[i][1]
}

// token matches tokens, and the comments and spaces between them.
var token = regexp.MustCompile(`[A-Za-z_$][\w$]*|\.?\d(?:[eEpP][+-]|[\w.'])*|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|` +
	`//.*|/\*.*?(?:\*/|$)|\s+|[^\s]`)

// tokens returns the start and end of each token of a line.
func tokens(line string) (all [][2]int) {
	for _, at := range token.FindAllStringIndex(line, -1) {
		text := line[at[0]:at[1]]
		if strings.TrimSpace(text) != "" && !strings.HasPrefix(text, "//") && !strings.HasPrefix(text, "/*") {
			all = append(all, [2]int{at[0], at[1]})
		}
	}
	return all
}

// maxTokens is the length in tokens beyond which lines are not compared.
const maxTokens = 300

// aligned returns the source column of each token of the preprocessed line expanded (see Columns). Unchanged tokens
// are matched by a longest common subsequence; the others get the column of the macro between their neighbours, if
// there is exactly one.
func aligned(expanded, source string) [][2]int {
	e, s := tokens(expanded), tokens(source)
	if len(e) > maxTokens || len(s) > maxTokens {
		return [][2]int{{1, 0}}
	}
	same := func(i, j int) bool { return expanded[e[i][0]:e[i][1]] == source[s[j][0]:s[j][1]] }
	longest := make([][]int, len(e)+1) // of e[i:] and s[j:]
	for i := len(e); i >= 0; i-- {
		longest[i] = make([]int, len(s)+1)
		for j := len(s) - 1; i < len(e) && j >= 0; j-- {
			longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			if same(i, j) {
				longest[i][j] = 1 + longest[i+1][j+1]
			}
		}
	}
	column := func(j int) int { return 1 + s[j][0] }
	var all [][2]int
	for i, j := 0, 0; i < len(e); {
		if j < len(s) && same(i, j) && longest[i][j] == 1+longest[i+1][j+1] {
			all = append(all, [2]int{1 + e[i][0], column(j)})
			i, j = i+1, j+1
			continue
		}
		// Between two common tokens the source has one macro with its arguments, or several.
		i2, j2 := i, j
		for (i2 < len(e) || j2 < len(s)) && !(i2 < len(e) && j2 < len(s) && same(i2, j2) &&
			longest[i2][j2] == 1+longest[i2+1][j2+1]) {
			if j2 == len(s) || i2 < len(e) && longest[i2+1][j2] >= longest[i2][j2+1] {
				i2++
			} else {
				j2++
			}
		}
		at := 0
		for q := j; q < j2; q++ {
			if c := source[s[q][0]]; c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' {
				if at != 0 {
					at = 0
					break
				}
				at = column(q)
			}
		}
		for ; i < i2; i++ {
			all = append(all, [2]int{1 + e[i][0], at})
		}
		j = j2
	}
	return all
}

var lineMarker = regexp.MustCompile(`^# (\d+) "([^"]*)"`)

// columns reads the files that nvcc kept in dir, preprocessed for the device.
func columns(dir string, files map[string][]string) Columns {
	all := Columns{}
	names, _ := filepath.Glob(filepath.Join(dir, "*.cpp1.ii"))
	for _, name := range names {
		text, err := plain.ReadFile(name, maxPTX)
		if err != nil {
			continue
		}
		file, line := "", 0
		for expanded := range strings.Lines(string(text)) {
			expanded = strings.TrimRight(expanded, "\r\n")
			if m := lineMarker.FindStringSubmatch(expanded); m != nil {
				file = filepath.Clean(m[2])
				line, _ = strconv.Atoi(m[1])
				continue
			}
			lines := files[file]
			if line > 0 && line <= len(lines) && expanded != strings.TrimRight(lines[line-1], " \t\r") {
				if all[file] == nil {
					all[file] = map[int][][2]int{}
				}
				if _, ok := all[file][line]; !ok && strings.TrimSpace(expanded) != "" {
					all[file][line] = aligned(expanded, lines[line-1])
				}
			}
			line++
		}
	}
	return all
}

func (s *sources) lines() map[string][]string {
	all := map[string][]string{}
	for _, f := range s.files {
		all[f.Path] = strings.Split(f.Content, "\n")
	}
	return all
}
