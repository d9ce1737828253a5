package workloads

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"fisub/internal/cache"
	"fisub/internal/safetensors"
	"fisub/internal/tensor"
	"fisub/internal/trace"
	"fisub/workloads/random"
)

// generator names the recipe of all generated values. Every file records it, and files of another recipe are
// regenerated. Value i of an input depends only on the recipe, the workload, the input's name and i: it is made from
// Stream(streams, uuid, name) as package random describes, so every machine writes the same bytes. Inputs of the gdn
// family have the ranges of a trained Qwen3-Next layer:
//
//	q, v, a, b   standard normal
//	k            standard normal, each head scaled to unit length
//	A_log        log of a decay rate uniform in [1, 16]
//	dt_bias      the inverse softplus of a time step log-uniform in [0.001, 0.1]
//	state        normal of deviation 0.25 = sqrt(8/128), as after eight orthogonal unit keys with values of unit variance
//	cu_seqlens   random cuts; no sequence is empty if there are enough tokens
//	initial_state_indices, output_state_indices, ssm_state_indices
//	             distinct slots of the pool in random order, including the last slot, see slots
//
// Of a mixture of experts:
//
//	routing_logits  normal around -2, raised by 0.5 for this rank's experts, and by 1 in the first row
//	routing_bias    normal of deviation 0.05
//
// The definition's router keeps half of the groups of experts, and a rank has one group. Without the rise half of the
// rows would choose no local expert, so that their output is zero; with it about an eighth do, and hardly ever the
// first. The scores are sigmoids of the logits. They differ about as much as the biases, so both matter.
//
// Of paged sparse attention, in which rows may share pages:
//
//	sparse_indices  if the cache is large enough, separate pages for each row, see served; otherwise distinct entries
//	                of the cache in random order for each row, then -1; about every fourth row is shorter than its
//	                width, but has at least one entry
//	seq_lens        at least 1; about a quarter fill their last page, about a quarter have at most topk tokens
//	block_table     for each row distinct pages in random order, padded with zeros if there are too few pages
//
// All other inputs have the contest's distributions for random ones (randomFill).
const (
	generator = "fisub.synth/2"
	streams   = "fisub.synth/1" // recipe 2 differs only in routing_logits, so all other values stay the same
)

// chunk is how many elements a goroutine fills at a time.
const chunk = 1 << 15

// A fill sets dst to the elements from first on.
type fill func(s random.Stream, dst []float32, first int)

// A synthetic is a tensor to generate.
type synthetic struct {
	key    string
	dtype  tensor.DType
	shape  []int
	stream random.Stream
	fill   fill
	codes  *codes // nil, or a faster source of the bytes that fill gives
}

// A blob is a file of synthetic tensors.
type blob struct {
	path    string
	tensors []synthetic
}

// Synth writes the files named by the workloads below the folder dest, or below the dataset's root if dest is "". It
// keeps existing files unless an older recipe made them. An invalid existing file or an absolute path is an error.
// progress may be nil; it is called before each file and at the end.
func (d *Dataset) Synth(ctx context.Context, def *trace.Definition, ws []*trace.Workload, dest string,
	progress func(done, total int)) error {
	own := false
	if len(ws) > 0 {
		d = d.home(def, ws[0])
	}
	if dest == "" {
		dest, own = d.root, d.embedded
	}
	blobs, err := d.blobsOf(def, ws)
	if err = cmp.Or(d.kept(), err); err != nil {
		return err
	}
	if progress == nil {
		progress = func(int, int) {}
	}
	for i, b := range blobs {
		progress(i, len(blobs))
		if own {
			err = d.keep(ctx, b)
		} else {
			_, err = b.make(ctx, dest, false)
		}
		if err != nil {
			return err
		}
	}
	progress(len(blobs), len(blobs))
	return nil
}

// stream returns the source of an input's values: New(streams, uuid, name, more..., seed), without a seed of 0.
// Sequence lengths do not depend on the seed.
func (d *Dataset) stream(uuid, name string, more ...string) random.Stream {
	if d.seed != 0 && name != "cu_seqlens" && name != "seq_lens" {
		more = append(more, fmt.Sprint("seed ", d.seed))
	}
	return random.New(append([]string{streams, uuid, name}, more...)...)
}

// blobsOf returns the files that the workloads name, in their order, with their tensors.
func (d *Dataset) blobsOf(def *trace.Definition, ws []*trace.Workload) ([]*blob, error) {
	var blobs []*blob
	byPath := map[string]*blob{}
	for _, w := range ws {
		axes, hard := maps.Collect(w.Axes.All()), edgeOf(def.Name, w.UUID)
		for name, spec := range def.Inputs.All() {
			source, _ := w.Inputs.Get(name)
			if source.Kind != trace.Safetensors || spec.Scalar {
				continue
			}
			shape, err := def.Shape(spec, axes)
			if err != nil {
				return nil, fmt.Errorf("workload %s: '%s': %w", w.UUID, name, err)
			}
			b := byPath[source.Path]
			if b == nil {
				b = &blob{path: source.Path}
				byPath[source.Path] = b
				blobs = append(blobs, b)
			}
			t := synthetic{key: source.TensorKey, dtype: spec.DType, shape: shape, stream: d.stream(w.UUID, name)}
			err = t.distribute(def, axes, name)
			if pool, ok := def.Inputs.Get("initial_state"); ok && err == nil && def.OpType == "gdn" &&
				strings.HasSuffix(name, "_indices") {
				t.fill, err = slots(def, axes, pool, d.stream(w.UUID, "slots"), name, shape)
			}
			if err != nil {
				return nil, fmt.Errorf("workload %s: '%s': %w", w.UUID, name, err)
			}
			if def.OpType == "moe" && name == "routing_logits" && len(shape) > 0 {
				t.fill = logits(shape, local(def, axes, w))
			}
			if hard != nil {
				t.fill, t.codes = hard.fill(name, shape, t.fill), nil
			}
			i := slices.IndexFunc(b.tensors, func(o synthetic) bool { return o.key == t.key })
			if i < 0 {
				b.tensors = append(b.tensors, t)
			} else if o := b.tensors[i]; o.dtype != t.dtype || !slices.Equal(o.shape, t.shape) {
				return nil, fmt.Errorf("workload %s: '%s': conflicting uses of tensor %q of %s: %v %v and %v %v",
					w.UUID, name, t.key, b.path, o.dtype, o.shape, t.dtype, t.shape)
			}
		}
	}
	return blobs, nil
}

// Limits of the generated files in the cache.
const (
	keptAge        = 30 * 24 * time.Hour // since the last use
	keptSize int64 = 10 << 30
)

// keep makes the file b of an embedded dataset in the cache, and removes old files there if it was missing.
func (d *Dataset) keep(ctx context.Context, b *blob) error {
	made, err := b.make(ctx, d.root, true)
	if err != nil {
		return cache.Unwritable(err)
	}
	if !made {
		if path, err := within(d.root, b.path); err == nil {
			cache.Use(path)
		}
		return nil
	}
	_ = cache.PruneFiles(d.cache, keptAge, keptSize) // what cannot be removed does no harm
	return nil
}

// fits reports whether f has the tensors of b, in their shapes and with their values.
func (b *blob) fits(f *safetensors.File) bool {
	for _, t := range b.tensors {
		if !f.Has(t.key) {
			return false
		}
		if x, err := f.Tensor(t.key); err != nil || x.DType != t.dtype || !slices.Equal(x.Shape, t.shape) ||
			!t.intact(x) {
			return false
		}
	}
	return true
}

// make writes the file below root if it is missing. If own is set, the file belongs to fisub and is also replaced if it
// is invalid, or if its values or shapes are outdated.
func (b *blob) make(ctx context.Context, root string, own bool) (made bool, err error) {
	path, err := within(root, b.path)
	if err != nil {
		return false, err
	}
	switch f, err := safetensors.Open(path); {
	case err == nil:
		by := f.Metadata()["generator"]
		fits := by == generator && (!own || b.fits(f))
		f.Close()
		if fits || !own && !strings.HasPrefix(by, "fisub.synth/") {
			return false, nil
		}
	case isMissing(err), own:
	default:
		return false, err
	}
	var named []safetensors.Named
	for _, t := range b.tensors {
		x, err := t.make(ctx)
		if err != nil {
			return false, fmt.Errorf("%s: tensor %q: %w", path, t.key, err)
		}
		named = append(named, safetensors.Named{Name: t.key, Tensor: x})
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, err
	}
	return true, safetensors.Write(path, named, map[string]string{"generator": generator})
}

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// maxElements bounds a generated tensor; the contest's largest, a MoE weight, has 939524096 elements.
const maxElements = 1 << 31

func (t *synthetic) make(ctx context.Context) (*tensor.Tensor, error) {
	if _, err := t.elements(); err != nil {
		return nil, err
	}
	x := tensor.New(t.dtype, t.shape...)
	return x, t.generate(ctx, func(data []byte, at int) error {
		copy(x.Data[at:], data)
		return nil
	})
}

func (t *synthetic) elements() (int, error) {
	n, ok := tensor.Elements(t.shape)
	if !ok || n > maxElements {
		return 0, fmt.Errorf("shape %s is too large to generate", brackets(t.shape))
	}
	return n, nil
}

// generate passes all bytes of the tensor to put in parts, from several goroutines and in any order; at is the byte
// offset of a part in the tensor.
func (t *synthetic) generate(ctx context.Context, put func(data []byte, at int) error) error {
	n, err := t.elements()
	if err != nil {
		return err
	}
	step := t.step(n, chunk)
	var next atomic.Int64
	var group errgroup.Group
	for range min(runtime.GOMAXPROCS(0), (n+step-1)/step) {
		group.Go(func() error {
			buf, x := make([]float32, step), tensor.New(t.dtype, step)
			for ctx.Err() == nil {
				first := int(next.Add(int64(step))) - step
				if first >= n {
					return nil
				}
				at, _ := t.dtype.Bytes(first)
				if err := put(t.part(buf[:min(step, n-first)], x, first), at); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	return cmp.Or(group.Wait(), ctx.Err())
}

// step returns how many of n elements to generate at a time, close to wanted.
func (t *synthetic) step(n, wanted int) int {
	row := 1
	if len(t.shape) > 0 {
		row = max(1, t.shape[len(t.shape)-1])
	}
	step := max(wanted/row, 1) * row // whole rows, for the fills that normalise
	step += step * (step & 1)        // whole bytes, if two elements share one
	return max(1, min(step, n))
}

// part returns the bytes of len(buf) elements from first on, in the memory of x.
func (t *synthetic) part(buf []float32, x *tensor.Tensor, first int) []byte {
	size, _ := t.dtype.Bytes(len(buf))
	if t.codes != nil {
		t.codes.fill(t.stream, x.Data[:size], first)
	} else {
		t.fill(t.stream, buf, first)
		x.WriteFloat32s(buf, 0)
	}
	return x.Data[:size]
}

// intact reports whether x, from a file in the cache, equals the output of generate. It compares a random sample: one
// part in 32, and at least 8. A submission that once ran without Landlock may have changed the file; a change that lets
// a wrong kernel pass affects most parts.
func (t *synthetic) intact(x *tensor.Tensor) bool {
	n, err := t.elements()
	if err != nil {
		return false
	}
	step := t.step(n, 1<<10)
	parts := (n + step - 1) / step
	buf, made := make([]float32, step), tensor.New(t.dtype, step)
	for _, i := range rand.Perm(parts)[:min(parts, max(8, parts/32))] {
		at, _ := t.dtype.Bytes(i * step)
		data := t.part(buf[:min(step, n-i*step)], made, i*step)
		if !bytes.Equal(data, x.Data[at:at+len(data)]) {
			return false
		}
	}
	return true
}

func each(f func(s random.Stream, i int) float64) fill {
	return func(s random.Stream, dst []float32, first int) {
		for i := range dst {
			dst[i] = float32(f(s, first+i))
		}
	}
}

// distribute sets the distribution of an input that is stored in a file.
func (t *synthetic) distribute(def *trace.Definition, axes map[string]int, name string) (err error) {
	if t.fill, err = synthFill(def, axes, name, t.shape); t.fill == nil && err == nil {
		t.distributeRandom(def, name)
	}
	return err
}

// distributeRandom sets the contest's distribution of a random input.
func (t *synthetic) distributeRandom(def *trace.Definition, name string) {
	t.fill = randomFill(def, name, t.dtype, t.shape)
	switch t.dtype {
	case tensor.Float8E4M3FN:
		t.codes = codesE4M3FN()
	case tensor.Float8E5M2:
		t.codes = codesE5M2()
	}
}

// synthFill returns the distribution of an input stored in a file, or nil if it is the one of a random input.
func synthFill(def *trace.Definition, axes map[string]int, name string, shape []int) (fill, error) {
	if def.OpType == "gdn" && len(shape) > 0 {
		switch name {
		case "k":
			return rows(shape, func(row []float64) {
				length := 0.0
				for _, x := range row {
					length += float64(x * x)
				}
				length = math.Sqrt(length)
				for i := range row {
					row[i] /= length
				}
			}), nil
		case "A_log":
			return each(func(s random.Stream, i int) float64 { return random.Log(1 + float64(15*s.Uniform(i))) }), nil
		case "dt_bias":
			lo, hi := random.Log(0.001), random.Log(0.1)
			return each(func(s random.Stream, i int) float64 {
				dt := random.Exp(lo + float64((hi-lo)*s.Uniform(i)))
				return random.Log(random.Exp(dt) - 1)
			}), nil
		case "state", "initial_state":
			return each(func(s random.Stream, i int) float64 { return 0.25 * s.Normal(i) }), nil
		case "cu_seqlens":
			q, _ := def.Inputs.Get("q")
			tokens, err := def.Shape(q, axes)
			if err != nil || len(tokens) == 0 || len(shape) != 1 || shape[0] == 0 {
				return nil, errors.New("q or cu_seqlens has no token axis")
			}
			return cuts(shape[0], tokens[0]), nil
		}
	}
	if def.OpType == "moe" {
		switch name {
		case "routing_logits":
			return logits(shape, nil), nil
		case "routing_bias":
			return each(func(s random.Stream, i int) float64 { return 0.05 * s.Normal(i) }), nil
		}
	}
	if def.OpType == "dsa_paged" && len(shape) > 0 {
		switch name {
		case "sparse_indices", "seq_lens", "block_table":
			return pagedFill(def, axes, name, shape)
		}
	}
	return nil, nil
}

// local returns the range of this rank's experts, or nil if the workload does not name it.
func local(def *trace.Definition, axes map[string]int, w *trace.Workload) []int {
	offset, _ := w.Inputs.Get("local_expert_offset")
	weights, ok := def.Inputs.Get("gemm1_weights")
	shape, err := def.Shape(weights, axes)
	if !ok || err != nil || len(shape) == 0 || offset.Kind != trace.ScalarInput {
		return nil
	}
	first := int(offset.Value.Int)
	return []int{first, first + shape[0]}
}

// logits returns the fill of routing_logits, of that shape, for a rank with the experts from local[0] to before
// local[1].
func logits(shape, local []int) fill {
	width := shape[len(shape)-1]
	return each(func(s random.Stream, i int) float64 {
		x, expert := s.Normal(i)-2, i%width
		switch {
		case len(local) == 0 || expert < local[0] || expert >= local[1]:
		case i < width:
			x++
		default:
			x += 0.5
		}
		return x
	})
}

// randomFill returns the contest's distribution of a random input.
func randomFill(def *trace.Definition, name string, dtype tensor.DType, shape []int) fill {
	if strings.HasPrefix(def.Name, "dsa_topk_indexer") && name == "k_index_cache_fp8" && len(shape) == 4 &&
		shape[2] == 1 && shape[3] == 132 {
		return indexCache(shape)
	}
	switch dtype {
	case tensor.Float32, tensor.Float16, tensor.BFloat16:
		return each(func(s random.Stream, i int) float64 { return s.Normal(i) })
	case tensor.Float8E4M3FN, tensor.Float8E5M2, tensor.Float4E2M1:
		return each(func(s random.Stream, i int) float64 { return clamp(s.Normal(i)) })
	case tensor.Bool:
		return each(func(s random.Stream, i int) float64 { return float64(s.Intn(i, 2)) })
	case tensor.Int8:
		return each(func(s random.Stream, i int) float64 { return float64(s.Intn(i, 256) - 128) })
	}
	return each(func(s random.Stream, i int) float64 { return float64(s.Intn(i, 2048) - 1024) })
}

func randomScalar(dtype tensor.DType, s random.Stream) *trace.Scalar {
	var x [1]float32
	randomFill(&trace.Definition{}, "", dtype, nil)(s, x[:], 0)
	switch {
	case dtype.IsFloat():
		return &trace.Scalar{Kind: trace.FloatScalar, Float: float64(x[0])}
	case dtype == tensor.Bool:
		return &trace.Scalar{Kind: trace.BoolScalar, Bool: x[0] != 0}
	}
	return &trace.Scalar{Kind: trace.IntScalar, Int: int64(x[0])}
}

// rows returns a fill that passes each row of normals along the last axis to f, which changes it.
func rows(shape []int, f func(row []float64)) fill {
	width := shape[len(shape)-1]
	return func(s random.Stream, dst []float32, first int) {
		row := make([]float64, width)
		for at := 0; at < len(dst); at += width {
			for i := range row {
				row[i] = s.Normal(first + at + i)
			}
			f(row)
			for i, x := range row {
				dst[at+i] = float32(x)
			}
		}
	}
}

// cuts splits tokens into n-1 sequences.
func cuts(n, tokens int) fill {
	return func(s random.Stream, dst []float32, first int) {
		points := make([]int, n)
		slack := max(0, tokens-(n-1)) // tokens left if every sequence has one
		for i := range points {
			points[i] = s.Intn(i, slack+1)
		}
		points[0], points[n-1] = 0, slack
		slices.Sort(points)
		for i := range points {
			points[i] = min(points[i]+i, tokens)
		}
		for i := range dst {
			dst[i] = float32(points[first+i])
		}
	}
}

// indexCache fills the packed key cache of the top-k indexer, shape [pages, tokens, 1, 132] of bytes: a page holds 128
// float8_e4m3fn values for each of its tokens, then a float32 scale for each.
func indexCache(shape []int) fill {
	tokens := shape[1]
	page := tokens * 132
	return func(s random.Stream, dst []float32, first int) {
		var bytes []byte
		at := -1
		for i := range dst {
			if p := (first + i) / page; p != at {
				at, bytes = p, indexPage(s, p*tokens, tokens)
			}
			dst[i] = float32(int8(bytes[(first+i)%page]))
		}
	}
}

func indexPage(s random.Stream, token, tokens int) []byte {
	values, scales := make([]byte, 0, tokens*132), tensor.New(tensor.Float32, tokens)
	for t := range tokens {
		var row [128]float32
		largest := float32(1e-4)
		for i := range row {
			x := float32(s.Normal((token+t)*len(row) + i))
			row[i] = tensor.Float32FromBFloat16(tensor.BFloat16FromFloat32(x))
			largest = max(largest, row[i], -row[i])
		}
		scale := largest / 448
		scales.WriteFloat32s([]float32{scale}, t)
		for _, x := range row {
			values = append(values, tensor.Float8E4M3FNFromFloat32(x/scale))
		}
	}
	return append(values, scales.Data...)
}

// clamp limits a normal to [-2, 2], as the contest does for narrow types.
func clamp(x float64) float64 { return min(2, max(-2, x)) }

// codeBits is the number of upper bits that select an entry of codes.
const codeBits = 15

// A codes maps uniform 32-bit numbers to the bytes of clamped normals of an 8-bit type. The byte changes at only a few
// numbers, so the upper bits mostly determine it: all[upper bits] is the byte, or hard if the lower bits matter.
type codes struct {
	all    [1 << codeBits]uint8
	encode func(float32) uint8
}

// hard is the byte of a NaN, which no clamped normal has.
const hard = 0x7f

var (
	codesE4M3FN = sync.OnceValue(func() *codes { return newCodes(tensor.Float8E4M3FNFromFloat32) })
	codesE5M2   = sync.OnceValue(func() *codes { return newCodes(tensor.Float8E5M2FromFloat32) })
)

func newCodes(encode func(float32) uint8) *codes {
	c := &codes{encode: encode}
	const width = 1 << (32 - codeBits)
	for i := range c.all {
		first := uint32(i * width)
		if c.all[i] = c.exact(first); c.exact(first+width-1) != c.all[i] {
			c.all[i] = hard
		}
	}
	return c
}

func (c *codes) exact(u uint32) uint8 { return c.encode(float32(clamp(random.Quantile(u)))) }

func (c *codes) code(u uint32) uint8 {
	if code := c.all[u>>(32-codeBits)]; code != hard {
		return code
	}
	return c.exact(u)
}

// fill sets dst to the bytes of the elements from first on; first must be even.
func (c *codes) fill(s random.Stream, dst []byte, first int) {
	i := 0
	for ; i+1 < len(dst); i += 2 {
		u := s.Uint64((first + i) >> 1)
		low, high := c.all[uint32(u)>>(32-codeBits)], c.all[u>>(64-codeBits)]
		if low == hard || high == hard {
			low, high = c.code(uint32(u)), c.code(uint32(u>>32))
		}
		binary.LittleEndian.PutUint16(dst[i:], uint16(low)|uint16(high)<<8)
	}
	if i < len(dst) {
		dst[i] = c.code(s.Uint32(first + i))
	}
}
