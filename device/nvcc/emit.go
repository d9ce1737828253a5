package nvcc

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/plain"
	"fisub/internal/trace"
)

//go:embed disassembler.txt
var pinnedDisassembler string

// A Listing is the PTX or machine code of one .cu file, with source lines as comments.
type Listing struct {
	File string `json:"file"` // the source
	Text string `json:"text"`
}

// Emit compiles sol for arch like Build, with line information, and lists its PTX, or its machine code if sass is set.
// Each kernel's head shows its resources. With sass it adds the place where most registers are live, and the loads and
// stores of local memory, such as spills. nvdisasm comes from the toolkit or PATH, or else is fetched below root after
// a call of fetching.
func Emit(ctx context.Context, root string, sol *trace.Solution, arch string, sass bool, fetching func()) (
	o *Object, all []Listing, err error) {
	t, err := Find(root)
	if err != nil {
		return nil, nil, err
	}
	s, err := newSources(sol, arch)
	if err != nil {
		return nil, nil, err
	}
	s.emit = true
	if o, err = t.object(ctx, root, s); err != nil {
		return nil, nil, err
	}
	tool := ""
	if sass {
		if tool, err = t.disassembler(ctx, root, fetching); err != nil {
			return nil, nil, err
		}
	}
	for i, file := range s.cuda {
		l := &lister{sources: s, heads: map[string][]string{}}
		for _, k := range o.Kernels {
			if k.File == file {
				l.heads[k.Symbol] = []string{k.Name + ": " + k.Text()}
			}
		}
		text := ""
		if name := filepath.Join(o.Dir, emitted(i)); sass {
			text, err = l.sass(ctx, tool, name+".cubin")
		} else if data, e := os.ReadFile(name + ".ptx"); e == nil {
			text = l.ptx(string(data))
		} else {
			err = e
		}
		if err != nil {
			return nil, nil, err
		}
		all = append(all, Listing{file, text})
	}
	return o, all, nil
}

// emitted returns the name, without extension, of the files kept for the .cu file i.
func emitted(i int) string { return fmt.Sprintf("emit_%d", i) }

// keep moves PTX and machine code of the .cu file i from nvcc's folder to dir.
func keep(from, dir string, i int) error {
	for _, ending := range []string{".ptx", ".cubin"} {
		names, _ := filepath.Glob(filepath.Join(from, "*"+ending))
		if len(names) != 1 {
			return fmt.Errorf("nvcc left %d files *%s, want 1", len(names), ending)
		}
		if err := os.Rename(names[0], filepath.Join(dir, emitted(i)+ending)); err != nil {
			return err
		}
	}
	return nil
}

func (t *Toolchain) disassembler(ctx context.Context, root string, fetching func()) (string, error) {
	const name = "nvdisasm"
	if own := filepath.Join(filepath.Dir(t.NVCC), name); isExecutable(own) {
		return own, nil
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	key := cache.Key("disassembler 1", machine(), pinnedDisassembler)
	path := filepath.Join(root, "toolchain", key, "cuda", "bin", name)
	if isExecutable(path) {
		return path, nil
	}
	fetching()
	return path, install(ctx, root, key, components(pinnedDisassembler), parts, nil)
}

// A lister adds source lines to a listing.
type lister struct {
	*sources
	heads map[string][]string // head of each kernel, by symbol
}

// at returns a place in a file, with its text if the file is a source. The compiler ran in a folder "src".
func (l *lister) at(file, line string) string {
	i := slices.IndexFunc(l.files, func(f trace.SourceFile) bool { return strings.HasSuffix(file, "/src/"+f.Path) })
	if i < 0 {
		return filepath.Base(file) + ":" + line
	}
	text, n := "", atoi(line)
	if lines := strings.Split(l.files[i].Content, "\n"); n > 0 && n <= len(lines) {
		text = ": " + strings.TrimSpace(lines[n-1])
	}
	return l.files[i].Path + ":" + line + text
}

func (l *lister) head(w *strings.Builder, symbol string) {
	for _, line := range l.heads[symbol] {
		fmt.Fprintf(w, "// %s\n", line)
	}
}

var (
	listedFile = regexp.MustCompile(`^\s*\.file\s+(\d+)\s+"([^"]*)"`)
	listedLoc  = regexp.MustCompile(`^\s*\.loc\s+(\d+) (\d+) \d+`)
)

// ptx adds only comments: the result can be assembled.
func (l *lister) ptx(text string) string {
	files := map[string]string{}
	for line := range strings.Lines(text) {
		if m := listedFile.FindStringSubmatch(line); m != nil {
			files[m[1]] = m[2]
		}
	}
	var w strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m := ptxEntry.FindStringSubmatch(line); m != nil {
			l.head(&w, m[1])
		}
		if m := listedLoc.FindStringSubmatch(line); m != nil {
			line += "\t// " + l.at(files[m[1]], m[2])
		}
		w.WriteString(line + "\n")
	}
	return w.String()
}

var (
	sassKernel  = regexp.MustCompile(`^//-+ \.text\.(\S+) `)
	sassLine    = regexp.MustCompile(`^\s*//## File "([^"]*)", line (\d+)(.*)`)
	sassInlined = regexp.MustCompile(`inlined at "([^"]*)", line (\d+)`)
	sassCode    = regexp.MustCompile(`^\s+/\*([0-9a-f]{4,})\*/\s+(?:@\S+\s+)?([A-Z0-9]+)`)
	sassLive    = regexp.MustCompile(`^\s+/\*([0-9a-f]{4,})\*/.*// \|\s+(\d+)\s`)
)

func (l *lister) sass(ctx context.Context, tool, cubin string) (string, error) {
	run := func(args ...string) (string, error) {
		out, err := device.Command(ctx, tool, append(args, cubin)...).Output()
		if err != nil {
			return "", fmt.Errorf("running nvdisasm: %w", err)
		}
		return string(out), nil
	}
	text, err := run("-c", "-gi")
	if err != nil {
		return "", err
	}
	counts, _ := run("-c", "-plr", "-lrm", "count") // excludes lines; nvdisasm 13.2 refuses kernels with 255 registers
	type most struct {
		live int
		at   string // address
	}
	peak := map[string]most{}
	kernel := ""
	for line := range strings.Lines(counts) {
		if m := sassKernel.FindStringSubmatch(line); m != nil {
			kernel = m[1]
		} else if m := sassLive.FindStringSubmatch(line); m != nil && atoi(m[2]) > peak[kernel].live {
			peak[kernel] = most{atoi(m[2]), m[1]}
		}
	}
	var w strings.Builder
	place, stack := "", false // place of the next instruction; true while reading its inlined calls
	local := map[string]map[string][2]int{}
	kernel = ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m := sassKernel.FindStringSubmatch(line); m != nil {
			kernel, place = m[1], ""
			local[kernel] = map[string][2]int{}
			line = heading + kernel + "\n" + line
		}
		if m := sassLine.FindStringSubmatch(line); m != nil {
			if !stack { // the innermost call comes first
				place = l.at(m[1], m[2])
			}
			stack = true
			line = "\t//## " + l.at(m[1], m[2])
			if in := sassInlined.FindStringSubmatch(m[3]); in != nil {
				line += ", inlined at " + l.at(in[1], in[2])
			}
		}
		if m := sassCode.FindStringSubmatch(line); m != nil {
			stack = false
			if p := peak[kernel]; p.at == m[1] && l.heads[kernel] != nil && place != "" {
				l.heads[kernel] = append(l.heads[kernel], fmt.Sprintf("most live registers: %d, at %s", p.live, place))
			}
			n := local[kernel][place]
			switch m[2] {
			case "STL":
				n[0]++
			case "LDL":
				n[1]++
			}
			if n != [2]int{} {
				local[kernel][place] = n
			}
		}
		w.WriteString(line + "\n")
	}
	for kernel, at := range local {
		places := slices.SortedFunc(maps.Keys(at), func(a, b string) int {
			return cmp.Or(cmp.Compare(at[b][0]+at[b][1], at[a][0]+at[a][1]), cmp.Compare(a, b))
		})
		for _, p := range places[:min(len(places), 10)] {
			l.heads[kernel] = append(l.heads[kernel], fmt.Sprintf("local memory: %s, %s at %s",
				plain.Count(at[p][0], "store"), plain.Count(at[p][1], "load"), p))
		}
	}
	var out strings.Builder
	for line := range strings.Lines(w.String()) {
		if symbol, ok := strings.CutPrefix(line, heading); ok {
			l.head(&out, strings.TrimSpace(symbol))
		} else {
			out.WriteString(line)
		}
	}
	return out.String(), nil
}

// heading marks the line at which a kernel's head is inserted at the end.
const heading = "\x00"
