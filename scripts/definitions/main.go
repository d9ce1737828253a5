// Command definitions generates definitions/gdn from a table and two templates: gdn.json.tmpl has the definition, and
// gdn.py.tmpl the parts of its reference. `go generate ./definitions` runs it.
package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// A row of the table stands for definitions that differ only in the number of heads.
type row struct {
	Op     string // "decode", "mtp_pool"
	State  string // dtype of the states
	Layout string // last axis of a state: "k" or "v"
	Slots  string // dtype of the indices of a pool of states; "" if each sequence has its own
	API    string // in flashinfer
	gpus   []int  // that share the heads of a layer: one definition for each number
}

// The functions of flashinfer that several rows share.
const (
	mtp          = "gdn_decode.gated_delta_rule_mtp"
	pretranspose = "gdn_decode.gated_delta_rule_decode_pretranspose"
)

var table = []row{
	{"decode", "float32", "k", "", "gdn.gated_delta_rule_decode", []int{1, 2, 4}},
	{"decode", "float32", "v", "", "gdn_decode.gated_delta_rule_decode", []int{4}},
	{"decode", "bfloat16", "k", "", pretranspose, []int{4}},
	{"decode_l2norm", "float32", "k", "", pretranspose, []int{4}},
	{"mtp_l2norm", "float32", "k", "", mtp, []int{1, 2, 4}},
	{"mtp_l2norm", "bfloat16", "k", "", pretranspose, []int{1, 2, 4}},
	{"mtp_output", "float32", "k", "int64", mtp, []int{4}},
	{"mtp_pool", "float32", "k", "int32", mtp, []int{1, 2, 4}},
	{"mtp_pool", "bfloat16", "k", "int32", pretranspose, []int{1, 2, 4}},
	{"mtp_scatter", "float32", "k", "int32", mtp, []int{1, 2, 4}},
	{"mtp_scatter", "bfloat16", "k", "int32", mtp, []int{4}},
	{"mtp_split", "float32", "k", "int64", mtp, []int{1, 2, 4}},
	{"mtp_split", "bfloat16", "k", "int64", pretranspose, []int{4}},
	{"mtp_verify", "float32", "k", "int32", mtp, []int{1, 2, 4}},
	{"mtp_verify", "bfloat16", "k", "int32", pretranspose, []int{4}},
	{"prefill", "float32", "k", "", "gdn.chunk_gated_delta_rule", []int{1, 2, 4}},
}

// A definition is the data of the templates.
type definition struct {
	row
	GPUs int
}

//go:embed *.tmpl
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{"json": quote}).ParseFS(files, "*.tmpl"))

func main() {
	log.SetFlags(0)
	log.SetPrefix("definitions: ")
	files, err := generate()
	if err != nil {
		log.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.FromSlash(name), content, 0o644); err != nil { // go generate runs in definitions
			log.Fatal(err)
		}
	}
}

// generate returns the definitions by their path below the folder definitions.
func generate() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, row := range table {
		for _, n := range row.gpus {
			d := definition{row, n}
			var text, indented bytes.Buffer
			if err := templates.ExecuteTemplate(&text, "gdn.json.tmpl", d); err != nil {
				return nil, err
			}
			if err := json.Indent(&indented, text.Bytes(), "", "  "); err != nil {
				return nil, fmt.Errorf("%s: %w", d.Name(), err)
			}
			files["gdn/"+d.Name()+".json"] = indented.Bytes()
		}
	}
	return files, nil
}

// quote returns s as JSON.
func quote(s string) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(s)
	return b.String(), err
}

func (d definition) Name() string {
	op := d.Op
	if d.State == "bfloat16" {
		op += "_bf16_state"
	}
	return fmt.Sprintf("gdn_%s_qk%d_v%d_d128_%s_last", op, d.QK(), d.V(), d.Layout)
}

func (d definition) QK() int { return 16 / d.GPUs }
func (d definition) V() int  { return 32 / d.GPUs }

// Stage returns the part of Op before the first underscore.
func (d definition) Stage() string {
	stage, _, _ := strings.Cut(d.Op, "_")
	return stage
}

func (d definition) Prefill() bool { return d.Stage() == "prefill" }
func (d definition) Decode() bool  { return d.Stage() == "decode" }

// Norm reports whether a call normalises queries and keys.
func (d definition) Norm() bool { return d.Stage() == "mtp" || d.Op == "decode_l2norm" }

// Padding reports whether rows may have no state.
func (d definition) Padding() bool { return d.Slots != "" && d.Op != "mtp_verify" }

// InPlace reports whether a call changes the pool.
func (d definition) InPlace() bool { return d.Padding() && d.Op != "mtp_output" }

// Optional reports whether the state may be None, as in the definitions of the contest.
func (d definition) Optional() bool {
	return d.Prefill() || d.Op == "decode" && d.State == "float32" && d.Layout == "k"
}

// Tokens returns the axes of the tokens.
func (d definition) Tokens() string {
	if d.Prefill() {
		return `"total_seq_len"`
	}
	return `"batch_size", "seq_len"`
}

// States returns the shape of the states.
func (d definition) States() string {
	states := "batch_size"
	if d.Prefill() {
		states = "num_seqs"
	} else if d.Slots != "" {
		states = "pool_size"
	}
	return fmt.Sprintf(`"%s", "num_v_heads", "head_size", "head_size"`, states)
}

// Reference returns the Python code: a part of gdn.py.tmpl.
func (d definition) Reference() (string, error) {
	part := map[string]string{"decode": "step", "mtp": "tokens", "prefill": "prefill"}[d.Stage()]
	if d.Decode() && d.Optional() {
		part = "decode"
	}
	var b strings.Builder
	err := templates.ExecuteTemplate(&b, part, d)
	return b.String(), err
}
