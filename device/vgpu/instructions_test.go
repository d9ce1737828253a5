//go:build linux && cgo

package vgpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"unsafe"
)

// lanes runs body in 32 threads and returns each thread's value of result: "%rd9", "%r9", "%h9" or, for predicates,
// "%p9". A thread's four inputs are in %rd1 to %rd4, %r1 to %r4 and %h1 to %h4.
func lanes(t *testing.T, body, result string, in [32][4]uint64) (out [32]uint64) {
	t.Helper()
	store := "mov.b64 %rd10, %rd9;"
	switch result {
	case "%r9":
		store = "cvt.u64.u32 %rd10, %r9;"
	case "%h9":
		store = "cvt.u64.u16 %rd10, %h9;"
	case "%p9":
		store = "selp.u64 %rd10, 1, 0, %p9;"
	}
	text := `
.version 9.0
.target sm_100
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out)
{
	.reg .pred %p<10>;
	.reg .b16 %h<20>;
	.reg .b32 %r<40>;
	.reg .b64 %rd<20>;
	.reg .b64 %a<4>;
	.reg .b32 %t;
	ld.param.u64 %a1, [in];
	ld.param.u64 %a2, [out];
	mov.u32 %t, %tid.x;
	mul.wide.u32 %a3, %t, 32;
	add.s64 %a1, %a1, %a3;
	ld.global.v2.u64 {%rd1, %rd2}, [%a1];
	ld.global.v2.u64 {%rd3, %rd4}, [%a1+16];
	cvt.u32.u64 %r1, %rd1; cvt.u32.u64 %r2, %rd2; cvt.u32.u64 %r3, %rd3; cvt.u32.u64 %r4, %rd4;
	cvt.u16.u64 %h1, %rd1; cvt.u16.u64 %h2, %rd2; cvt.u16.u64 %h3, %rd3; cvt.u16.u64 %h4, %rd4;
	` + body + `
	` + store + `
	mul.wide.u32 %a3, %t, 8;
	add.s64 %a2, %a2, %a3;
	st.global.u64 [%a2], %rd10;
	ret;
}
`
	m := &Machine{Workers: 1}
	defer m.drop()
	mod, err := m.Load(text)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	k, err := mod.Kernel("k")
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if len(k.Lacks()) > 0 {
		t.Fatalf("%s: lacks %v", body, k.Lacks())
	}
	x, y := m.Alloc(32*32, "in"), m.Alloc(32*8, "out")
	copy(unsafe.Slice((*[4]uint64)(at(x)), 32), in[:])
	params := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(x)), uint64(y))
	if err := m.Run(k, Launch{Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1}, Params: params}); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	copy(out[:], unsafe.Slice((*uint64)(at(y)), 32))
	return out
}

// check runs an instruction on values from next and compares each lane with want.
func check(t *testing.T, body, result string, next func(r *rand.Rand) [4]uint64, want func(v [4]uint64) uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(len(body)), 7))
	for range 4 {
		var in [32][4]uint64
		for i := range in {
			in[i] = next(r)
		}
		got := lanes(t, body, result, in)
		for i := range got {
			if w := want(in[i]); got[i] != w {
				t.Errorf("%s of %#x: got %#x, want %#x", body, in[i], got[i], w)
				return
			}
		}
	}
}

// integers returns numbers of all sizes, with an emphasis on limits.
func integers(r *rand.Rand) (v [4]uint64) {
	for i := range v {
		v[i] = r.Uint64() >> r.IntN(64)
		switch r.IntN(6) {
		case 0:
			v[i] = -v[i]
		case 1:
			v[i] = []uint64{0, 1, math.MaxUint64, 1 << 63, 1<<63 - 1, 1 << 31, 1<<31 - 1, 0xffff8000, 0x7fff, 0x8000}[r.IntN(10)]
		}
	}
	if r.IntN(8) == 0 {
		v[1] = v[0]
	}
	return v
}

// signed and unsigned convert the lowest n bits.
func signed(v uint64, n int) *big.Int {
	x := new(big.Int).SetUint64(v << (64 - n) >> (64 - n))
	if v>>(n-1)&1 == 1 {
		x.Sub(x, new(big.Int).Lsh(big.NewInt(1), uint(n)))
	}
	return x
}

func unsigned(v uint64, n int) *big.Int { return new(big.Int).SetUint64(v << (64 - n) >> (64 - n)) }

// low returns x modulo 2^n.
func low(x *big.Int, n int) uint64 {
	return new(big.Int).And(x, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(n)), big.NewInt(1))).Uint64()
}

func register(n, i int) string {
	return map[int]string{16: "%h", 32: "%r", 64: "%rd"}[n] + fmt.Sprint(i)
}

func TestIntegers(t *testing.T) {
	for _, n := range []int{16, 32, 64} {
		for _, s := range []string{"s", "u"} {
			read := unsigned
			if s == "s" {
				read = signed
			}
			typ := fmt.Sprint(s, n)
			d, a, b, c := register(n, 9), register(n, 1), register(n, 2), register(n, 3)
			two := func(op string, f func(x, y *big.Int) *big.Int) {
				t.Helper()
				check(t, fmt.Sprintf("%s.%s %s, %s, %s;", op, typ, d, a, b), d, integers,
					func(v [4]uint64) uint64 { return low(f(read(v[0], n), read(v[1], n)), n) })
			}
			nonzero := func(op string, f func(x, y *big.Int) *big.Int) {
				check(t, fmt.Sprintf("%s.%s %s, %s, %s;", op, typ, d, a, b), d, func(r *rand.Rand) [4]uint64 {
					for {
						if v := integers(r); read(v[1], n).Sign() != 0 {
							return v
						}
					}
				}, func(v [4]uint64) uint64 { return low(f(read(v[0], n), read(v[1], n)), n) })
			}
			i := func() *big.Int { return new(big.Int) }
			two("add", func(x, y *big.Int) *big.Int { return i().Add(x, y) })
			two("sub", func(x, y *big.Int) *big.Int { return i().Sub(x, y) })
			two("mul.lo", func(x, y *big.Int) *big.Int { return i().Mul(x, y) })
			two("mul.hi", func(x, y *big.Int) *big.Int { return i().Rsh(i().Mul(x, y), uint(n)) })
			nonzero("div", func(x, y *big.Int) *big.Int { return i().Quo(x, y) })
			nonzero("rem", func(x, y *big.Int) *big.Int { return i().Rem(x, y) })
			two("min", func(x, y *big.Int) *big.Int {
				if x.Cmp(y) < 0 {
					return x
				}
				return y
			})
			two("max", func(x, y *big.Int) *big.Int {
				if x.Cmp(y) > 0 {
					return x
				}
				return y
			})
			check(t, fmt.Sprintf("mad.lo.%s %s, %s, %s, %s;", typ, d, a, b, c), d, integers, func(v [4]uint64) uint64 {
				return low(i().Add(i().Mul(read(v[0], n), read(v[1], n)), read(v[2], n)), n)
			})
			if n < 64 {
				wide := register(2*n, 9)
				check(t, fmt.Sprintf("mul.wide.%s %s, %s, %s;", typ, wide, a, b), wide, integers,
					func(v [4]uint64) uint64 { return low(i().Mul(read(v[0], n), read(v[1], n)), 2*n) })
				check(t, fmt.Sprintf("mad.wide.%s %s, %s, %s, %s;", typ, wide, a, b, register(2*n, 3)), wide, integers,
					func(v [4]uint64) uint64 {
						return low(i().Add(i().Mul(read(v[0], n), read(v[1], n)), read(v[2], 2*n)), 2*n)
					})
			}
			shift := func(r *rand.Rand) [4]uint64 {
				v := integers(r)
				v[1] = uint64(r.IntN(80))
				return v
			}
			check(t, fmt.Sprintf("shr.%s %s, %s, %%r2;", typ, d, a), d, shift,
				func(v [4]uint64) uint64 { return low(i().Rsh(read(v[0], n), uint(v[1])), n) })
			if s == "s" {
				check(t, fmt.Sprintf("neg.%s %s, %s;", typ, d, a), d, integers,
					func(v [4]uint64) uint64 { return low(i().Neg(read(v[0], n)), n) })
				check(t, fmt.Sprintf("abs.%s %s, %s;", typ, d, a), d, integers,
					func(v [4]uint64) uint64 { return low(i().Abs(read(v[0], n)), n) })
			} else {
				check(t, fmt.Sprintf("shl.b%d %s, %s, %%r2;", n, d, a), d, shift,
					func(v [4]uint64) uint64 { return low(i().Lsh(read(v[0], n), uint(v[1])), n) })
			}
			if n > 16 {
				field := func(r *rand.Rand) [4]uint64 {
					v := integers(r)
					v[1], v[2] = uint64(r.IntN(80)), uint64(r.IntN(80))
					return v
				}
				check(t, fmt.Sprintf("bfe.%s %s, %s, %%r2, %%r3;", typ, d, a), d, field, func(v [4]uint64) uint64 {
					// The loop in the ISA.
					pos, length, msb := int(v[1]), int(v[2]), n-1
					sbit := uint64(0)
					if s == "s" && length > 0 {
						sbit = v[0] >> min(pos+length-1, msb) & 1
					}
					var out uint64
					for k := 0; k <= msb; k++ {
						bit := sbit
						if k < length && pos+k <= msb {
							bit = v[0] >> (pos + k) & 1
						}
						out |= bit << k
					}
					return out
				})
				check(t, fmt.Sprintf("bfind.%s %%r9, %s;", typ, a), "%r9", integers, func(v [4]uint64) uint64 {
					x := read(v[0], n)
					if x.Sign() < 0 {
						x.Not(x)
					}
					return low(big.NewInt(int64(x.BitLen())-1), 32)
				})
			}
		}
		if n == 16 {
			continue
		}
		d, a, b := register(n, 9), register(n, 1), register(n, 2)
		check(t, fmt.Sprintf("popc.b%d %%r9, %s;", n, a), "%r9", integers,
			func(v [4]uint64) uint64 { return uint64(bits.OnesCount64(v[0] << (64 - n))) })
		check(t, fmt.Sprintf("clz.b%d %%r9, %s;", n, a), "%r9", integers,
			func(v [4]uint64) uint64 { return uint64(n - unsigned(v[0], n).BitLen()) })
		check(t, fmt.Sprintf("brev.b%d %s, %s;", n, d, a), d, integers,
			func(v [4]uint64) uint64 { return bits.Reverse64(v[0]<<(64-n)) << (64 - n) >> (64 - n) })
		check(t, fmt.Sprintf("bfi.b%d %s, %s, %s, %%r3, %%r4;", n, d, a, b), d, func(r *rand.Rand) [4]uint64 {
			v := integers(r)
			v[2], v[3] = uint64(r.IntN(80)), uint64(r.IntN(80))
			return v
		}, func(v [4]uint64) uint64 {
			out := v[1]
			for i := 0; i < int(v[3]) && int(v[2])+i < n; i++ {
				at := int(v[2]) + i
				out = out&^(1<<at) | v[0]>>i&1<<at
			}
			return out << (64 - n) >> (64 - n)
		})
	}
	check(t, "lop3.b32 %r9, %r1, %r2, %r3, 0xd8;", "%r9", integers, func(v [4]uint64) (out uint64) {
		for i := range 32 {
			index := v[0]>>i&1<<2 | v[1]>>i&1<<1 | v[2]>>i&1
			out |= 0xd8 >> index & 1 << i
		}
		return out
	})
	check(t, "prmt.b32 %r9, %r1, %r2, %r3;", "%r9", integers, func(v [4]uint64) (out uint64) {
		both := v[1]<<32 | v[0]&0xffffffff
		for i := range 4 {
			sel := v[2] >> (4 * i) & 15
			b := both >> (8 * (sel & 7)) & 255
			if sel&8 != 0 {
				b = uint64(int64(int8(b))>>7) & 255
			}
			out |= b << (8 * i)
		}
		return out
	})
	for _, side := range []string{"l", "r"} {
		for _, mode := range []string{"wrap", "clamp"} {
			check(t, fmt.Sprintf("shf.%s.%s.b32 %%r9, %%r1, %%r2, %%r3;", side, mode), "%r9", func(r *rand.Rand) [4]uint64 {
				v := integers(r)
				v[2] = uint64(r.IntN(70))
				return v
			}, func(v [4]uint64) uint64 {
				n := v[2] & 31
				if mode == "clamp" {
					n = min(v[2], 32)
				}
				a, b := v[0]&0xffffffff, v[1]&0xffffffff
				if side == "l" {
					return (b<<n | a>>(32-n)) & 0xffffffff
				}
				return (b<<(32-n) | a>>n) & 0xffffffff
			})
		}
	}
	check(t, "add.cc.u32 %r8, %r1, %r3; addc.u32 %r9, %r2, %r4;", "%r9", integers, func(v [4]uint64) uint64 {
		a, b := v[1]<<32|v[0]&0xffffffff, v[3]<<32|v[2]&0xffffffff
		return (a + b) >> 32
	})
	check(t, "sub.cc.u32 %r8, %r1, %r3; subc.u32 %r9, %r2, %r4;", "%r9", integers, func(v [4]uint64) uint64 {
		a, b := v[1]<<32|v[0]&0xffffffff, v[3]<<32|v[2]&0xffffffff
		return (a - b) >> 32
	})
	check(t, "dp4a.s32.u32 %r9, %r1, %r2, %r3;", "%r9", integers, func(v [4]uint64) uint64 {
		sum := int32(v[2])
		for i := range 4 {
			sum += int32(int8(v[0]>>(8*i))) * int32(uint8(v[1]>>(8*i)))
		}
		return uint64(uint32(sum))
	})
}

// TestFields compares instructions on fields of bits, and sums of differences, with their description in the ISA.
func TestFields(t *testing.T) {
	small := func(r *rand.Rand) [4]uint64 {
		v := integers(r)
		for i := range 2 {
			if v[i+1] = uint64(r.IntN(80)); r.IntN(8) == 0 {
				v[i+1] = uint64(r.Uint32())
			}
		}
		return v
	}
	for _, mode := range []string{"clamp", "wrap"} {
		for _, typ := range []string{"s32", "u32"} {
			check(t, fmt.Sprintf("szext.%s.%s %%r9, %%r1, %%r2;", mode, typ), "%r9", small, func(v [4]uint64) uint64 {
				switch n := int(v[1] & 31); {
				case mode == "clamp" && v[1] >= 32:
					return v[0] & 0xffffffff
				case n == 0:
					return 0
				case typ == "s32":
					return low(signed(v[0], n), 32)
				default:
					return low(unsigned(v[0], n), 32)
				}
			})
		}
		check(t, fmt.Sprintf("bmsk.%s.b32 %%r9, %%r2, %%r3;", mode), "%r9", small, func(v [4]uint64) (out uint64) {
			at, n := v[1], v[2]
			if mode == "wrap" {
				at, n = at&31, n&31
			}
			for i := range uint64(32) {
				if i >= at && i-at < n {
					out |= 1 << i
				}
			}
			return out
		})
	}
	check(t, "fns.b32 %r9, %r1, %r2, %r3;", "%r9", func(r *rand.Rand) [4]uint64 {
		return [4]uint64{integers(r)[0], uint64(r.IntN(32)), uint64(uint32(r.IntN(41) - 20))}
	}, func(v [4]uint64) uint64 {
		at, n, step := int(v[1]), int(int32(v[2])), 1
		if n < 0 {
			n, step = -n, -1
		}
		for i := at; i >= 0 && i < 32 && (n != 0 || i == at); i += step {
			if v[0]>>i&1 == 0 {
				continue
			}
			if n <= 1 {
				return uint64(i)
			}
			n--
		}
		return 0xffffffff
	})
	check(t, "slct.u64.s32 %rd9, %rd1, %rd2, %r3;", "%rd9", integers, func(v [4]uint64) uint64 {
		return v[int(v[2]>>31&1)]
	})
	check(t, "slct.b32.f32 %r9, %r1, %r2, %r3;", "%r9", floats(false), func(v [4]uint64) uint64 {
		if math.Float32frombits(uint32(v[2])) >= 0 {
			return v[0]
		}
		return v[1]
	})
	for _, n := range []int{16, 32, 64} {
		for typ, read := range map[string]func(uint64, int) *big.Int{"s": signed, "u": unsigned} {
			d, a, b, c := register(n, 9), register(n, 1), register(n, 2), register(n, 3)
			check(t, fmt.Sprintf("sad.%s%d %s, %s, %s, %s;", typ, n, d, a, b, c), d, integers, func(v [4]uint64) uint64 {
				x := new(big.Int).Sub(read(v[0], n), read(v[1], n))
				return low(x.Add(x.Abs(x), read(v[2], n)), n)
			})
		}
	}
}

// TestSpaces has addresses of each space.
func TestSpaces(t *testing.T) {
	const addresses = "{ .shared .b32 s; .local .b32 l; mov.u64 %rd7, s; cvta.shared.u64 %rd7, %rd7; mov.u64 %rd8, l; " +
		"cvta.local.u64 %rd8, %rd8; isspacep."
	for space, want := range map[string]string{"global": "%a1", "shared": "%rd7", "shared::cta": "%rd7", "local": "%rd8"} {
		for _, address := range []string{"%a1", "%rd7", "%rd8"} {
			check(t, addresses+space+" %p9, "+address+"; }", "%p9", integers, func([4]uint64) uint64 {
				if address == want {
					return 1
				}
				return 0
			})
		}
	}
	check(t, "ldu.global.v2.u64 {%rd8, %rd9}, [%a1+16];", "%rd9", integers, func(v [4]uint64) uint64 { return v[3] })
}

// TestPage compares the names of instructions in docs/emulator.md with the decoder's.
func TestPage(t *testing.T) {
	data, err := os.ReadFile("../../docs/emulator.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(data), "\n## What it executes\n")
	text, rest, _ := strings.Cut(text, "\nMissing:\n")
	missing, _, _ := strings.Cut(rest, "\n## ")
	name := regexp.MustCompile("`([a-z]\\w*)[^`]*`")
	listed := map[string]bool{}
	for line := range strings.Lines(text) {
		if cells := strings.Split(line, " | "); len(cells) == 3 {
			for _, m := range name.FindAllStringSubmatch(cells[1], -1) {
				listed[m[1]] = true
			}
		}
	}
	for name := range instructions {
		if !listed[name] && name != "fisub" { // inserted by bench/pyworker
			t.Errorf("docs/emulator.md lacks %s", name)
		}
	}
	for _, name := range []string{"f32x2", "printf", "assert", "malloc", "free"} { // a type, functions
		delete(listed, name)
	}
	for name := range listed {
		if _, ok := instructions[name]; !ok {
			t.Errorf("docs/emulator.md names %s, which is not supported", name)
		}
	}
	_, absent, _ := strings.Cut(missing, "\n- the instructions ")
	absent, _, _ = strings.Cut(absent, ";\n")
	all := name.FindAllStringSubmatch(absent, -1)
	for _, m := range all {
		if _, ok := instructions[m[1]]; ok {
			t.Errorf("docs/emulator.md calls %s missing, but it is supported", m[1])
		}
	}
	if len(all) == 0 {
		t.Error("docs/emulator.md: no list of missing instructions")
	}
}

// TestVideo compares random forms of each scalar video instruction with their description in the ISA.
func TestVideo(t *testing.T) {
	type field struct{ at, bits int }
	fields := map[string]field{"": {0, 32}, ".b0": {0, 8}, ".b1": {8, 8}, ".b2": {16, 8}, ".b3": {24, 8}, ".h0": {0, 16},
		".h1": {16, 16}}
	read := func(v uint64, selector, typ string) *big.Int {
		f := fields[selector]
		if typ == "s32" {
			return signed(v>>f.at, f.bits)
		}
		return unsigned(v>>f.at, f.bits)
	}
	inputs := func(r *rand.Rand) [4]uint64 {
		v := integers(r)
		if r.IntN(2) == 0 { // a distance for shifts, in the word, all halves or all bytes
			v[1] = uint64(r.IntN(80)) * []uint64{1, 0x10001, 0x1010101}[r.IntN(3)]
		}
		return v
	}
	r := rand.New(rand.NewPCG(4, 4))
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	part := func() string { return pick(".b0", ".b1", ".b2", ".b3", ".h0", ".h1") }
	for _, name := range strings.Fields("vadd vsub vabsdiff vmin vmax vshl vshr vset") {
		for range 60 {
			result, atype, btype := pick("s32", "u32"), pick("s32", "u32"), pick("s32", "u32")
			to, a, b, sat, second, mode := "", pick("", part()), pick("", part()), pick("", ".sat"), "", ""
			third := ""
			switch r.IntN(3) {
			case 0:
				to, third = part(), ", %r3"
			case 1:
				second, third = pick(".add", ".min", ".max"), ", %r3"
			}
			op := fmt.Sprintf("%s.%s.%s.%s%s", name, result, atype, btype, sat)
			switch name {
			case "vshl", "vshr":
				btype, mode = "u32", pick(".clamp", ".wrap")
				op = fmt.Sprintf("%s.%s.%s.%s%s%s", name, result, atype, btype, sat, mode)
			case "vset":
				result, sat, mode = "u32", "", pick(".eq", ".ne", ".lt", ".le", ".gt", ".ge")
				op = fmt.Sprintf("%s.%s.%s%s", name, atype, btype, mode)
			}
			body := fmt.Sprintf("%s%s %%r9%s, %%r1%s, %%r2%s%s;", op, second, to, a, b, third)
			check(t, body, "%r9", inputs, func(v [4]uint64) uint64 {
				x, y, c := read(v[0], a, atype), read(v[1], b, btype), read(v[2], "", result)
				distance := uint(y.Uint64())
				if mode == ".wrap" {
					distance %= 32
				}
				distance = min(distance, 32)
				z := new(big.Int)
				switch name {
				case "vadd":
					z.Add(x, y)
				case "vsub":
					z.Sub(x, y)
				case "vabsdiff":
					z.Abs(z.Sub(x, y))
				case "vmin", "vmax":
					z = x
					if (x.Cmp(y) > 0) == (name == "vmin") {
						z = y
					}
				case "vshl":
					z.Lsh(x, distance)
				case "vshr":
					z.Rsh(x, distance)
				case "vset":
					less, equal := x.Cmp(y) < 0, x.Cmp(y) == 0
					if map[string]bool{".eq": equal, ".ne": !equal, ".lt": less, ".le": less || equal, ".gt": !less && !equal,
						".ge": !less}[mode] {
						z.SetInt64(1)
					}
				}
				f := fields[to]
				if sat != "" {
					least, most := int64(0), int64(1)<<f.bits-1
					if result == "s32" {
						least, most = -1<<(f.bits-1), most>>1
					}
					if z.Cmp(big.NewInt(least)) < 0 {
						z = big.NewInt(least)
					} else if z.Cmp(big.NewInt(most)) > 0 {
						z = big.NewInt(most)
					}
				}
				switch second {
				case ".add":
					return low(z.Add(z, c), 32)
				case ".min", ".max":
					if z = read(low(z, 32), "", result); (z.Cmp(c) > 0) == (second == ".min") {
						z = c
					}
				}
				return v[2]&0xffffffff&^((1<<f.bits-1)<<f.at) | low(z, f.bits)<<f.at
			})
		}
	}
}

// floats returns the bits of float32 numbers; normal excludes special values and the ends of the range.
func floats(normal bool) func(r *rand.Rand) [4]uint64 {
	return func(r *rand.Rand) (v [4]uint64) {
		for i := range v {
			f := float32(math.Ldexp(r.Float64()*2-1, r.IntN(40)-20))
			v[i] = uint64(math.Float32bits(f))
			if !normal {
				switch r.IntN(4) {
				case 0:
					v[i] = uint64(r.Uint32())
				case 1:
					v[i] = []uint64{0, 1 << 31, 0x7f800000, 0xff800000, 0x7fc00000, 1, 0x807fffff, 0x00800000, 0x7f7fffff, 0x3f800000}[r.IntN(10)]
				}
			}
		}
		if !normal && r.IntN(4) == 0 {
			v[1] = v[0]
		}
		return v
	}
}

var roundingModes = map[string]big.RoundingMode{"rn": big.ToNearestEven, "rz": big.ToZero, "rm": big.ToNegativeInf,
	"rp": big.ToPositiveInf}

// TestFloat32 compares with exact results, rounded once.
func TestFloat32(t *testing.T) {
	value := func(v uint64) *big.Float {
		return new(big.Float).SetPrec(2000).SetFloat64(float64(math.Float32frombits(uint32(v))))
	}
	for name, mode := range roundingModes {
		round := func(x *big.Float) uint64 {
			y, _ := new(big.Float).SetPrec(24).SetMode(mode).Set(x).Float32()
			return uint64(math.Float32bits(y))
		}
		e := func() *big.Float { return new(big.Float).SetPrec(2000) }
		for op, f := range map[string]func(v [4]uint64) *big.Float{
			"add": func(v [4]uint64) *big.Float { return e().Add(value(v[0]), value(v[1])) },
			"sub": func(v [4]uint64) *big.Float { return e().Sub(value(v[0]), value(v[1])) },
			"mul": func(v [4]uint64) *big.Float { return e().Mul(value(v[0]), value(v[1])) },
			"fma": func(v [4]uint64) *big.Float {
				return e().Add(e().Mul(value(v[0]), value(v[1])), value(v[2]))
			},
			"div": func(v [4]uint64) *big.Float { return e().Quo(value(v[0]), value(v[1])) },
		} {
			args := "%r1, %r2"
			if op == "fma" {
				args += ", %r3"
			}
			check(t, fmt.Sprintf("%s.%s.f32 %%r9, %s;", op, name, args), "%r9", floats(true),
				func(v [4]uint64) uint64 { return round(f(v)) })
		}
		check(t, fmt.Sprintf("and.b32 %%r1, %%r1, 0x7fffffff; sqrt.%s.f32 %%r9, %%r1;", name), "%r9", floats(true),
			func(v [4]uint64) uint64 { return round(e().Sqrt(e().Abs(value(v[0])))) })
	}
	// All kinds of numbers, rounded to nearest: compare with Go's float32, or float64 if rounding twice is the same as
	// once.
	canonical := func(f float32) uint64 {
		if f != f {
			return 0x7fffffff
		}
		return uint64(math.Float32bits(f))
	}
	f32 := func(v uint64) float32 { return math.Float32frombits(uint32(v)) }
	check(t, "add.f32 %r9, %r1, %r2;", "%r9", floats(false), func(v [4]uint64) uint64 { return canonical(f32(v[0]) + f32(v[1])) })
	check(t, "mul.f32 %r9, %r1, %r2;", "%r9", floats(false), func(v [4]uint64) uint64 { return canonical(f32(v[0]) * f32(v[1])) })
	check(t, "div.rn.f32 %r9, %r1, %r2;", "%r9", floats(false), func(v [4]uint64) uint64 { return canonical(f32(v[0]) / f32(v[1])) })
	flush := func(f float32) float32 {
		if math.Abs(float64(f)) < 0x1p-126 {
			return float32(math.Copysign(0, float64(f)))
		}
		return f
	}
	check(t, "add.ftz.f32 %r9, %r1, %r2;", "%r9", floats(false), func(v [4]uint64) uint64 {
		return canonical(flush(flush(f32(v[0])) + flush(f32(v[1]))))
	})
	check(t, "mul.sat.f32 %r9, %r1, %r2;", "%r9", floats(false), func(v [4]uint64) uint64 {
		x := f32(v[0]) * f32(v[1])
		switch {
		case !(x > 0):
			return 0
		case x > 1:
			x = 1
		}
		return uint64(math.Float32bits(x))
	})
	for op, less := range map[string]bool{"min": true, "max": false} {
		check(t, op+".f32 %r9, %r1, %r2;", "%r9", floats(false), func(v [4]uint64) uint64 {
			x, y := f32(v[0]), f32(v[1])
			switch {
			case x != x && y != y:
				return 0x7fffffff
			case x != x:
				return uint64(math.Float32bits(y))
			case y != y:
				return uint64(math.Float32bits(x))
			case less:
				return uint64(math.Float32bits(float32(math.Min(float64(x), float64(y)))))
			}
			return uint64(math.Float32bits(float32(math.Max(float64(x), float64(y)))))
		})
	}
	for op, best := range map[string]func(x, y float64) float64{"min": math.Min, "max": math.Max} {
		check(t, op+".NaN.f32 %r9, %r1, %r2, %r3;", "%r9", floats(false), func(v [4]uint64) uint64 {
			x, y, z := float64(f32(v[0])), float64(f32(v[1])), float64(f32(v[2]))
			if x != x || y != y || z != z {
				return 0x7fffffff
			}
			return canonical(float32(best(best(x, y), z)))
		})
	}
	// The approximations' documented errors are about 2^-22 relative, or 2 units in the last place.
	for op, f := range map[string]func(float64) float64{"ex2": math.Exp2, "rcp": func(x float64) float64 { return 1 / x },
		"sqrt": math.Sqrt, "rsqrt": func(x float64) float64 { return 1 / math.Sqrt(x) }, "lg2": math.Log2} {
		var in [32][4]uint64
		r := rand.New(rand.NewPCG(3, 3))
		for i := range in {
			in[i][0] = uint64(math.Float32bits(float32(math.Ldexp(1+r.Float64(), r.IntN(12)-6))))
		}
		got := lanes(t, op+".approx.f32 %r9, %r1;", "%r9", in)
		for i := range got {
			want := f(float64(f32(in[i][0])))
			if x := float64(f32(got[i])); math.Abs(x-want) > 0x1p-22*math.Max(math.Abs(want), 0)+0x1p-22 && op == "lg2" ||
				op != "lg2" && math.Abs(x-want) > 0x1p-22*math.Abs(want) {
				t.Errorf("%s.approx of %v: got %v, want %v", op, f32(in[i][0]), x, want)
			}
		}
	}
}

func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func(x, y float64) bool
	}{
		{"eq", func(x, y float64) bool { return x == y }}, {"ne", func(x, y float64) bool { return x < y || x > y }},
		{"lt", func(x, y float64) bool { return x < y }}, {"le", func(x, y float64) bool { return x <= y }},
		{"gt", func(x, y float64) bool { return x > y }}, {"ge", func(x, y float64) bool { return x >= y }},
		{"equ", func(x, y float64) bool { return !(x < y || x > y) }}, {"neu", func(x, y float64) bool { return x != y }},
		{"ltu", func(x, y float64) bool { return !(x >= y) }}, {"leu", func(x, y float64) bool { return !(x > y) }},
		{"gtu", func(x, y float64) bool { return !(x <= y) }}, {"geu", func(x, y float64) bool { return !(x < y) }},
		{"num", func(x, y float64) bool { return x == x && y == y }}, {"nan", func(x, y float64) bool { return x != x || y != y }},
	} {
		truth := func(b bool) uint64 {
			if b {
				return 1
			}
			return 0
		}
		f := func(v uint64) float64 { return float64(math.Float32frombits(uint32(v))) }
		check(t, "setp."+c.name+".f32 %p9, %r1, %r2;", "%p9", floats(false),
			func(v [4]uint64) uint64 { return truth(c.f(f(v[0]), f(v[1]))) })
		check(t, "setp.eq.f32 %p1, %r3, %r3; setp."+c.name+".and.f32 %p8|%p9, %r1, %r2, %p1;", "%p9", floats(false),
			func(v [4]uint64) uint64 { return truth(!c.f(f(v[0]), f(v[1])) && f(v[2]) == f(v[2])) })
	}
	for _, c := range []struct {
		body, result string
		yes          uint64
	}{
		{"set.lt.f16.f16 %h9, %h1, %h2;", "%h9", 0x3c00}, {"set.lt.bf16.f16 %h9, %h1, %h2;", "%h9", 0x3f80},
		{"set.lt.f32.f16 %r9, %h1, %h2;", "%r9", 0x3f800000}, {"set.lt.u32.f16 %r9, %h1, %h2;", "%r9", 0xffffffff},
		{"set.lt.f16.s16 %h9, %h1, %h2;", "%h9", 0x3c00}, {"set.lt.f32.s32 %r9, %r1, %r2;", "%r9", 0x3f800000},
	} {
		check(t, c.body, c.result,
			func(r *rand.Rand) [4]uint64 { return [4]uint64{r.Uint64N(4), r.Uint64N(4)} }, // subnormal halves
			func(v [4]uint64) uint64 {
				if v[0] < v[1] {
					return c.yes
				}
				return 0
			})
	}
	for name, f := range map[string]func(c int) bool{"eq": func(c int) bool { return c == 0 }, "ne": func(c int) bool { return c != 0 },
		"lt": func(c int) bool { return c < 0 }, "le": func(c int) bool { return c <= 0 }, "gt": func(c int) bool { return c > 0 },
		"ge": func(c int) bool { return c >= 0 }} {
		for _, n := range []int{16, 32, 64} {
			for s, read := range map[string]func(uint64, int) *big.Int{"s": signed, "u": unsigned} {
				check(t, fmt.Sprintf("setp.%s.%s%d %%p9, %s, %s;", name, s, n, register(n, 1), register(n, 2)), "%p9", integers,
					func(v [4]uint64) uint64 {
						if f(read(v[0], n).Cmp(read(v[1], n))) {
							return 1
						}
						return 0
					})
			}
		}
	}
}

// A narrow is a floating-point format: its bits, mantissa bits, bias and largest number.
type narrow struct {
	bits, mantissa, bias int
	most                 float64
}

// encode returns the code of the nearest number, found by trying all.
func (f narrow) encode(x float64, saturate bool) uint64 {
	if x != x {
		return uint64(1)<<(f.bits-1) - 1
	}
	if saturate {
		x = math.Copysign(min(math.Abs(x), f.most), x)
	}
	best, distance := uint64(0), math.Inf(1)
	for code := uint64(0); ; code++ {
		v := f.value(code)
		if v > f.most {
			break
		}
		d := math.Abs(math.Abs(x) - v)
		if d < distance || d == distance && code&1 == 0 {
			best, distance = code, d
		}
	}
	if !saturate && math.Abs(x) >= f.most+(f.most-f.value(best-1))/2 && best > 0 && f.value(best) == f.most {
		best++ // infinity
	}
	if math.Signbit(x) {
		best |= 1 << (f.bits - 1)
	}
	return best
}

func (f narrow) value(code uint64) float64 {
	m, e := int(code)&(1<<f.mantissa-1), int(code)>>f.mantissa
	if e == 0 {
		return math.Ldexp(float64(m), 1-f.bias-f.mantissa)
	}
	return math.Ldexp(float64(m+1<<f.mantissa), e-f.bias-f.mantissa)
}

// narrows holds the formats of 8 bits and fewer; those of e4m3 and e5m2 also have infinities or NaN.
var narrows = map[string]narrow{"e4m3": {8, 3, 7, 448}, "e5m2": {8, 2, 15, 57344}, "e2m3": {6, 3, 1, 7.5}, "e3m2": {6, 2, 3, 28},
	"e2m1": {4, 1, 1, 6}}

// number returns the value of a code with its sign.
func (f narrow) number(code uint64) float64 {
	v := f.value(code & (1<<(f.bits-1) - 1))
	special := v > f.most
	switch {
	case special && f.mantissa != 3 && code&(1<<f.mantissa-1) == 0:
		v = math.Inf(1)
	case special:
		return math.NaN()
	}
	if code>>(f.bits-1)&1 == 1 {
		v = -v
	}
	return v
}

// stochastic returns the code of x after bits of random are added below the last place.
func (f narrow) stochastic(x float64, random uint64, bits int) uint64 {
	if x != x || math.Abs(x) >= f.most {
		return f.encode(x, true)
	}
	var below uint64
	for f.value(below+1) <= math.Abs(x) {
		below++
	}
	lo, hi := f.value(below), f.value(below+1)
	if (math.Abs(x)-lo)/(hi-lo)+math.Ldexp(float64(random), -bits) >= 1 {
		below++
	}
	if math.Signbit(x) {
		below |= 1 << (f.bits - 1)
	}
	return below
}

// TestNarrowConversions compares conversions to and from types of 4 to 8 bits with a search among all their numbers.
func TestNarrowConversions(t *testing.T) {
	f := func(v uint64) float64 { return float64(math.Float32frombits(uint32(v))) }
	half, bfloat := narrow{16, 10, 15, 65504}, narrow{16, 7, 127, 0x1.fep127}
	for name, n := range narrows {
		numbers := func(r *rand.Rand) (v [4]uint64) {
			for i := range v {
				x := math.Ldexp(r.Float64()*2-1, r.IntN(40)-22)
				switch r.IntN(4) {
				case 0: // numbers, and the middle between two
					x = (n.value(uint64(r.IntN(1<<(n.bits-1)))) + n.value(uint64(r.IntN(1<<(n.bits-1))))) / 2
				case 1:
					x = []float64{math.NaN(), 0, math.Copysign(0, -1), n.most, -n.most, n.most * 1.01, math.Inf(1), math.Inf(-1), 1e-30}[r.IntN(9)]
				}
				v[i] = uint64(math.Float32bits(float32(x)))
			}
			return v
		}
		zero := func(x float64) float64 {
			if math.Signbit(x) && x == x {
				return 0
			}
			return x
		}
		width, result := 8, "%h9"
		to := func(body string) string { return body }
		from := to
		if n.bits == 4 {
			width = 4
			to = func(body string) string {
				return "{.reg .b8 b; " + strings.Replace(body, "%h9", "b", 1) + " mov.b16 %h9, {b, 0};}" // as in cuda_fp4.h
			}
			from = func(body string) string {
				return "{.reg .b8 b, c; mov.b16 {b, c}, %h1; " + strings.Replace(body, "%h1", "b", 1) + "}"
			}
		}
		check(t, to("cvt.rn.satfinite."+name+"x2.f32 %h9, %r1, %r2;"), result, numbers, func(v [4]uint64) uint64 {
			return n.encode(f(v[0]), true)<<width | n.encode(f(v[1]), true)
		})
		check(t, to("cvt.rn.satfinite.relu."+name+"x2.f32 %h9, %r1, %r2;"), result, numbers, func(v [4]uint64) uint64 {
			return n.encode(zero(f(v[0])), true)<<width | n.encode(zero(f(v[1])), true)
		})
		for source, g := range map[string]narrow{"f16x2": half, "bf16x2": bfloat} {
			check(t, to("cvt.rn.satfinite."+name+"x2."+source+" %h9, %r1;"), result, func(r *rand.Rand) [4]uint64 {
				v := numbers(r)
				return [4]uint64{g.encode(f(v[0]), true)<<16 | g.encode(f(v[1]), true)}
			}, func(v [4]uint64) uint64 {
				return n.encode(g.number(v[0]>>16), true)<<width | n.encode(g.number(v[0]&0xffff), true)
			})
			check(t, from("cvt.rn."+source+"."+name+"x2 %r9, %h1;"), "%r9", func(r *rand.Rand) [4]uint64 {
				return [4]uint64{uint64(r.IntN(1<<n.bits))<<width | uint64(r.IntN(1<<n.bits))}
			}, func(v [4]uint64) uint64 {
				code := func(c uint64) uint64 {
					x := n.number(c & (1<<n.bits - 1))
					if math.IsInf(x, 0) {
						return map[string]uint64{"f16x2": 0x7c00, "bf16x2": 0x7f80}[source] | c>>7&1<<15
					}
					return g.encode(x, true)
				}
				return code(v[0]>>width)<<16 | code(v[0])
			})
		}
		// Four numbers, from the top; random bits of 16 for each pair.
		four, into := "cvt.rs.satfinite."+name+"x4.f32 %r9, {%r1, %r2, %r3, %r4}, %r5;", "%r9"
		if n.bits == 4 {
			four, into = strings.Replace(four, "%r9", "%h9", 1), "%h9"
		}
		check(t, "mov.b64 {%r5, %r6}, %rd4; mov.b32 %r5, %r6; "+four, into, func(r *rand.Rand) [4]uint64 {
			v := numbers(r)
			v[3] |= r.Uint64() << 32
			return v
		}, func(v [4]uint64) (all uint64) {
			random := v[3] >> 32
			for i := range v {
				part := random >> 16
				if i > 1 {
					part = random & 0xffff
				}
				if n.bits == 4 {
					part = random>>24<<8 | random>>8&255
					if i > 1 {
						part = random>>16&255<<8 | random&255
					}
				}
				all = all<<width | n.stochastic(f(v[i]), part, 16)
			}
			return all
		})
	}
	random := func(r *rand.Rand) (v [4]uint64) {
		for i := range v {
			v[i] = uint64(math.Float32bits(float32(math.Ldexp(r.Float64()*2-1, r.IntN(24)-12))))
		}
		v[2] = uint64(r.Uint32())
		return v
	}
	check(t, "cvt.rs.f16x2.f32 %r9, %r1, %r2, %r3;", "%r9", random, func(v [4]uint64) uint64 {
		return half.stochastic(f(v[0]), v[2]>>16&0x1fff, 13)<<16 | half.stochastic(f(v[1]), v[2]&0x1fff, 13)
	})
	check(t, "cvt.rs.bf16x2.f32 %r9, %r1, %r2, %r3;", "%r9", random, func(v [4]uint64) uint64 {
		return bfloat.stochastic(f(v[0]), v[2]>>16, 16)<<16 | bfloat.stochastic(f(v[1]), v[2]&0xffff, 16)
	})
	// A scale is the exponent of a power of two at or below the number, or with rp at or above it; 255 is NaN.
	scale := func(x float64, up, finite bool) uint64 {
		x = math.Abs(x)
		switch {
		case x != x:
			return 255
		case math.IsInf(x, 0):
			if finite {
				return 254
			}
			return 255
		}
		code := 0
		for code < 255 && (math.Ldexp(1, code+1-127) <= x || up && math.Ldexp(1, code-127) < x) {
			code++
		}
		if code == 255 && finite {
			code--
		}
		return uint64(code)
	}
	exponents := func(r *rand.Rand) (v [4]uint64) {
		for i := range v {
			v[i] = uint64(r.Uint32())
			if r.IntN(2) == 0 {
				v[i] = []uint64{0, 1, 0x400000, 0x400001, 0x7fffff, 0x800000, 0x800001, 0x3f800000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f000001}[r.IntN(13)]
			}
		}
		return v
	}
	for _, round := range []string{"rz", "rp"} {
		for _, finite := range []string{"", ".satfinite"} {
			check(t, "cvt."+round+finite+".ue8m0x2.f32 %h9, %r1, %r2;", "%h9", exponents, func(v [4]uint64) uint64 {
				return scale(f(v[0]), round == "rp", finite != "")<<8 | scale(f(v[1]), round == "rp", finite != "")
			})
			check(t, "cvt."+round+finite+".ue8m0x2.bf16x2 %h9, %r1;", "%h9", exponents, func(v [4]uint64) uint64 {
				return scale(f(v[0]&0xffff0000), round == "rp", finite != "")<<8 | scale(f(v[0]<<16), round == "rp", finite != "")
			})
		}
	}
	check(t, "cvt.rn.bf16x2.ue8m0x2 %r9, %h1;", "%r9", integers, func(v [4]uint64) uint64 {
		code := func(c uint64) uint64 {
			if c == 255 {
				return 0x7fff
			}
			return bfloat.encode(math.Ldexp(1, int(c)-127), true)
		}
		return code(v[0]>>8&255)<<16 | code(v[0]&255)
	})
}

func TestConversions(t *testing.T) {
	f := func(v uint64) float64 { return float64(math.Float32frombits(uint32(v))) }
	half := narrow{16, 10, 15, 65504}
	small := func(r *rand.Rand) (v [4]uint64) {
		for i := range v {
			v[i] = uint64(math.Float32bits(float32(math.Ldexp(r.Float64()*2-1, r.IntN(44)-26))))
			switch r.IntN(8) {
			case 0:
				v[i] = uint64(math.Float32bits(float32(half.value(uint64(r.IntN(0x7bff)))+half.value(uint64(r.IntN(0x7bff))))/2)) &^ 0
			case 1:
				v[i] = []uint64{0x7fc00000, 0, 1 << 31, 0x477fefff, 0x477ff000, 0x477fe000, 0x43e00000, 0x43e80000, 0xc7800000}[r.IntN(9)]
			}
		}
		return v
	}
	check(t, "cvt.rn.f16.f32 %h9, %r1;", "%h9", small, func(v [4]uint64) uint64 { return half.encode(f(v[0]), false) })
	check(t, "cvt.f32.f16 %r9, %h1;", "%r9", func(r *rand.Rand) [4]uint64 { return [4]uint64{uint64(r.IntN(0x7c00)) | uint64(r.IntN(2))<<15} },
		func(v [4]uint64) uint64 {
			x := half.value(v[0] & 0x7fff)
			if v[0]>>15 == 1 {
				x = -x
			}
			return uint64(math.Float32bits(float32(x)))
		})
	bf := func(x uint64) uint64 { // nearest even by definition: half a unit is 0x8000
		if f(x) != f(x) {
			return 0x7fff
		}
		up, rest := x>>16, x&0xffff
		if rest > 0x8000 || rest == 0x8000 && up&1 == 1 {
			up++
		}
		return up
	}
	check(t, "cvt.rn.bf16.f32 %h9, %r1;", "%h9", floats(false), func(v [4]uint64) uint64 { return bf(v[0]) })
	check(t, "cvt.rn.bf16x2.f32 %r9, %r1, %r2;", "%r9", floats(false), func(v [4]uint64) uint64 { return bf(v[0])<<16 | bf(v[1]) })
	check(t, "cvt.rz.bf16.f32 %h9, %r1;", "%h9", floats(true), func(v [4]uint64) uint64 { return v[0] >> 16 })
	check(t, "cvt.rna.tf32.f32 %r9, %r1;", "%r9", floats(true), func(v [4]uint64) uint64 { return (v[0] + 0x1000) &^ 0x1fff })
	// To integers: every rounding mode, clamped; NaN becomes 0.
	for mode, round := range map[string]func(float64) float64{"rni": math.RoundToEven, "rzi": math.Trunc, "rmi": math.Floor,
		"rpi": math.Ceil} {
		for _, n := range []int{16, 32, 64} {
			for _, s := range []string{"s", "u"} {
				check(t, fmt.Sprintf("cvt.%s.%s%d.f32 %s, %%r1;", mode, s, n, register(n, 9)), register(n, 9), floats(false),
					func(v [4]uint64) uint64 {
						x := round(f(v[0]))
						lo, hi := new(big.Int), new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(n)), big.NewInt(1))
						if s == "s" {
							lo.Neg(new(big.Int).Lsh(big.NewInt(1), uint(n-1)))
							hi.Rsh(hi, 1)
						}
						switch {
						case x != x && n == 64:
							return 1 << 63
						case x != x:
							return 0
						case math.IsInf(x, 1):
							return low(hi, n)
						case math.IsInf(x, -1):
							return low(lo, n)
						}
						i, _ := big.NewFloat(x).Int(nil)
						if i.Cmp(lo) < 0 {
							i = lo
						} else if i.Cmp(hi) > 0 {
							i = hi
						}
						return low(i, n)
					})
			}
		}
	}
	for name, mode := range roundingModes {
		for _, n := range []int{32, 64} {
			for s, read := range map[string]func(uint64, int) *big.Int{"s": signed, "u": unsigned} {
				check(t, fmt.Sprintf("cvt.%s.f32.%s%d %%r9, %s;", name, s, n, register(n, 1)), "%r9", integers,
					func(v [4]uint64) uint64 {
						x, _ := new(big.Float).SetPrec(24).SetMode(mode).SetInt(read(v[0], n)).Float32()
						return uint64(math.Float32bits(x))
					})
			}
		}
	}
	// Between integers, with and without saturation.
	for _, from := range []int{16, 32, 64} {
		for _, to := range []int{16, 32, 64} {
			for s1, read := range map[string]func(uint64, int) *big.Int{"s": signed, "u": unsigned} {
				for _, s2 := range []string{"s", "u"} {
					d := register(to, 9)
					check(t, fmt.Sprintf("cvt.%s%d.%s%d %s, %s;", s2, to, s1, from, d, register(from, 1)), d, integers,
						func(v [4]uint64) uint64 { return low(read(v[0], from), to) })
					check(t, fmt.Sprintf("cvt.sat.%s%d.%s%d %s, %s;", s2, to, s1, from, d, register(from, 1)), d, integers,
						func(v [4]uint64) uint64 {
							x := read(v[0], from)
							lo, hi := new(big.Int), new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(to)), big.NewInt(1))
							if s2 == "s" {
								lo.Neg(new(big.Int).Lsh(big.NewInt(1), uint(to-1)))
								hi.Rsh(hi, 1)
							}
							if x.Cmp(lo) < 0 {
								x = lo
							} else if x.Cmp(hi) > 0 {
								x = hi
							}
							return low(x, to)
						})
				}
			}
		}
	}
}

func TestHalf(t *testing.T) {
	half := narrow{16, 10, 15, 65504}
	decode := func(code uint64) float64 {
		x := half.value(code & 0x7fff)
		if code>>15&1 == 1 {
			x = -x
		}
		return x
	}
	next := func(r *rand.Rand) (v [4]uint64) {
		for i := range v {
			v[i] = uint64(r.IntN(0x5000)) | uint64(r.IntN(2))<<15
		}
		return v
	}
	// Sums and products of 11-bit values are exact in float64. The sum in an fma is not: it is rounded to odd.
	check(t, "add.f16 %h9, %h1, %h2;", "%h9", next, func(v [4]uint64) uint64 { return half.encode(decode(v[0])+decode(v[1]), false) })
	check(t, "mul.f16 %h9, %h1, %h2;", "%h9", next, func(v [4]uint64) uint64 { return half.encode(decode(v[0])*decode(v[1]), false) })
	check(t, "fma.rn.f16 %h9, %h1, %h2, %h3;", "%h9", next, func(v [4]uint64) uint64 {
		exact := new(big.Float).SetPrec(500).SetFloat64(decode(v[0]) * decode(v[1]))
		exact.Add(exact, new(big.Float).SetFloat64(decode(v[2])))
		// Round to odd in float64, then to nearest.
		x, accuracy := exact.Float64()
		if accuracy != big.Exact { // to odd
			if math.Float64bits(x)&1 == 0 {
				toward := math.Inf(1)
				if accuracy == big.Above {
					toward = math.Inf(-1)
				}
				x = math.Nextafter(x, toward)
			}
		}
		return half.encode(x, false)
	})
	f := func(v uint64) float64 { return float64(math.Float32frombits(uint32(v) << 16)) }
	bf := func(x float64) uint64 {
		y := new(big.Float).SetPrec(8).SetMode(big.ToNearestEven).SetFloat64(x)
		z, _ := y.Float32()
		return uint64(math.Float32bits(z) >> 16)
	}
	brain := func(r *rand.Rand) (v [4]uint64) {
		for i := range v {
			v[i] = uint64(math.Float32bits(float32(math.Ldexp(r.Float64()*2-1, r.IntN(20)-10))) >> 16)
		}
		return v
	}
	check(t, "mul.rn.bf16 %h9, %h1, %h2;", "%h9", brain, func(v [4]uint64) uint64 { return bf(f(v[0]) * f(v[1])) })
	check(t, "add.rn.bf16 %h9, %h1, %h2;", "%h9", brain, func(v [4]uint64) uint64 { return bf(f(v[0]) + f(v[1])) })
	check(t, "fma.rn.bf16 %h9, %h1, %h2, %h3;", "%h9", brain, func(v [4]uint64) uint64 { return bf(f(v[0])*f(v[1]) + f(v[2])) })
	check(t, "mov.b32 %r5, {%h1, %h2}; mov.b32 %r6, {%h3, %h4}; mul.rn.bf16x2 %r9, %r5, %r6;", "%r9", brain,
		func(v [4]uint64) uint64 { return bf(f(v[0])*f(v[2])) | bf(f(v[1])*f(v[3]))<<16 })
}

// TestMixed checks arithmetic of float32 with narrower operands, which is exact until its result is rounded.
func TestMixed(t *testing.T) {
	half, brain := narrow{16, 10, 15, 65504}, func(v uint64) float64 { return float64(math.Float32frombits(uint32(v) << 16)) }
	next := func(r *rand.Rand) (v [4]uint64) {
		for i := range v {
			v[i] = uint64(math.Float32bits(float32(math.Ldexp(r.Float64()*2-1, r.IntN(20)-10))))
		}
		return v
	}
	e := func(x float64) *big.Float { return new(big.Float).SetPrec(2000).SetFloat64(x) }
	for kind, value := range map[string]func(v uint64) float64{"bf16": brain, "f16": func(v uint64) float64 {
		return math.Copysign(half.value(v&0x7fff), 1-float64(v>>15)*2)
	}} {
		for name, mode := range roundingModes {
			for op, f := range map[string]func(a, b, c float64) *big.Float{
				"add": func(a, b, c float64) *big.Float { return e(0).Add(e(a), e(c)) },
				"sub": func(a, b, c float64) *big.Float { return e(0).Sub(e(a), e(c)) },
				"fma": func(a, b, c float64) *big.Float { return e(0).Add(e(0).Mul(e(a), e(b)), e(c)) },
			} {
				args := "%h1, %r3"
				if op == "fma" {
					args = "%h1, %h2, %r3"
				}
				// The upper half of a word is a number of 16 bits.
				check(t, fmt.Sprintf("shr.u64 %%rd1, %%rd1, 16; shr.u64 %%rd2, %%rd2, 16; cvt.u16.u64 %%h1, %%rd1; cvt.u16.u64 %%h2, %%rd2; "+
					"%s.%s.f32.%s %%r9, %s;", op, name, kind, args), "%r9", next, func(v [4]uint64) uint64 {
					c := float64(math.Float32frombits(uint32(v[2])))
					y, _ := new(big.Float).SetPrec(24).SetMode(mode).Set(f(value(v[0]>>16), value(v[1]>>16), c)).Float32()
					return uint64(math.Float32bits(y))
				})
			}
		}
	}
}

// TestPolicy compares createpolicy with the encoding of libcu++'s access properties.
func TestPolicy(t *testing.T) {
	for _, c := range []struct {
		body string
		want uint64
	}{
		{"createpolicy.fractional.L2::evict_last.b64 %rd9;", 0x14f0000000000000},
		{"createpolicy.fractional.L2::evict_first.L2::evict_first.b64 %rd9, 0f3F000000;", 0x1370000000000000},
		{"mov.u64 %rd8, 0x7f0000001000; mov.u32 %r8, 8192; createpolicy.range.global.L2::evict_first.b64 %rd9, [%rd8], %r8, %r8;",
			0x1a00104000000000},
		{"mov.u64 %rd8, 0; mov.u32 %r8, 1; createpolicy.range.global.L2::evict_normal.b64 %rd9, [%rd8], %r8, %r8;",
			0x1e00002000000000},
	} {
		check(t, c.body, "%rd9", integers, func([4]uint64) uint64 { return c.want })
	}
}

// TestLanes compares exchanges between lanes with their description in the ISA.
func TestLanes(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	var in [32][4]uint64
	for i := range in {
		in[i] = [4]uint64{uint64(r.Uint32()), uint64(r.IntN(64)), uint64(r.IntN(4))}
	}
	for _, mode := range []string{"up", "down", "bfly", "idx"} {
		for _, c := range []int{0, 31, 0x1800 | 7, 0x1c1f, 0x1f} {
			got := lanes(t, fmt.Sprintf("shfl.sync.%s.b32 %%r9|%%p1, %%r1, %%r2, %d, -1; @!%%p1 not.b32 %%r9, %%r9;", mode, c), "%r9", in)
			for lane := range 32 {
				bval, cval, mask := int(in[lane][1])&31, c&31, c>>8&31
				maxLane, minLane := lane&mask|cval&^mask&31, lane&mask
				j, p := 0, false
				switch mode {
				case "up":
					j = lane - bval
					p = j >= maxLane
				case "down":
					j = lane + bval
					p = j <= maxLane
				case "bfly":
					j = lane ^ bval
					p = j <= maxLane
				case "idx":
					j = minLane | bval&^mask&31
					p = j <= maxLane
				}
				want := uint64(0)
				if p {
					want = in[j][0]
				} else {
					want = in[lane][0] ^ 0xffffffff
				}
				if got[lane] != want {
					t.Fatalf("shfl.%s with c %#x, lane %d, b %d: got %#x, want %#x", mode, c, lane, bval, got[lane], want)
				}
			}
		}
	}
	ballot, same := uint64(0), [4]uint64{}
	sum, least, half := uint32(0), uint32(math.MaxUint32), [2]uint32{}
	const tile = "mov.u32 %r5, %laneid; and.b32 %r6, %r5, 16; shl.b32 %r6, 0xffff, %r6; "
	for i := range in {
		half[i/16] += uint32(in[i][0])
		ballot |= in[i][2] & 1 << i
		same[in[i][2]] |= 1 << i
		sum += uint32(in[i][0])
		least = min(least, uint32(in[i][0]))
	}
	for body, want := range map[string]func(i int) uint64{
		"and.b32 %r5, %r3, 1; setp.ne.u32 %p1, %r5, 0; vote.sync.ballot.b32 %r9, %p1, -1;": func(int) uint64 { return ballot },
		"match.any.sync.b32 %r9, %r3, -1;":                                                 func(i int) uint64 { return same[in[i][2]] },
		"redux.sync.add.u32 %r9, %r1, -1;":                                                 func(int) uint64 { return uint64(sum) },
		"redux.sync.min.u32 %r9, %r1, -1;":                                                 func(int) uint64 { return uint64(least) },
		// Tiles: lanes execute an instruction together with different member masks.
		tile + "redux.sync.add.u32 %r9, %r1, %r6;": func(i int) uint64 { return uint64(half[i/16]) },
		tile + "match.any.sync.b32 %r9, %r3, %r6;": func(i int) uint64 { return same[in[i][2]] & (0xffff << (i / 16 * 16)) },
		tile + "and.b32 %r5, %r3, 1; setp.ne.u32 %p1, %r5, 0; vote.sync.ballot.b32 %r9, %p1, %r6;": func(i int) uint64 {
			return ballot & (0xffff << (i / 16 * 16))
		},
		tile + "elect.sync %r9|%p1, %r6;": func(i int) uint64 { return uint64(i / 16 * 16) },
		tile + "setp.eq.u32 %p1, %r5, 20; vote.sync.any.pred %p1, %p1, %r6; selp.u32 %r9, 1, 0, %p1;": func(i int) uint64 {
			return uint64(i / 16)
		},
		tile + "shfl.sync.idx.b32 %r9, %r1, 3, 0x101f, %r6;": func(i int) uint64 { return in[i/16*16+3][0] },
		"mov.u32 %r9, %laneid;":                              func(i int) uint64 { return uint64(i) },
		"mov.u32 %r9, %lanemask_lt;":                         func(i int) uint64 { return 1<<i - 1 },
		"activemask.b32 %r9;":                                func(int) uint64 { return 0xffffffff },
		"movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r1;": func(i int) uint64 {
			// element (row, column) is in half of lane row*4 + column/2
			get := func(row, col int) uint64 { return in[row*4+col/2][0] >> (16 * (col & 1)) & 0xffff }
			row, col := i/4, i%4*2
			return get(col, row) | get(col+1, row)<<16
		},
	} {
		got := lanes(t, body, "%r9", in)
		for i := range got {
			if got[i] != want(i) {
				t.Errorf("%s, lane %d: got %#x, want %#x", body, i, got[i], want(i))
				break
			}
		}
	}
}

// TestMMA multiplies small integers, for exact results, with the ISA's layout of the fragments.
func TestMMA(t *testing.T) {
	for _, c := range []struct {
		k          int
		a, b, d    string
		bits, regs int // of an element; of d
	}{
		{16, "f16", "f16", "f32", 16, 4}, {8, "f16", "f16", "f32", 16, 4}, {16, "bf16", "bf16", "f32", 16, 4},
		{8, "bf16", "bf16", "f32", 16, 4}, {8, "tf32", "tf32", "f32", 32, 4}, {4, "tf32", "tf32", "f32", 32, 4},
		{32, "e4m3", "e5m2", "f32", 8, 4}, {32, "s8", "s8", "s32", 8, 4}, {16, "u8", "s8", "s32", 8, 4}, {16, "f16", "f16", "f16", 16, 2},
	} {
		r := rand.New(rand.NewPCG(uint64(c.k), 5))
		A, B, C := [16][32]int{}, [32][8]int{}, [16][8]int{}
		for i := range 16 {
			for k := range c.k {
				A[i][k] = r.IntN(7) - 3
				if c.a == "u8" {
					A[i][k] = r.IntN(200)
				}
			}
			for j := range 8 {
				C[i][j] = r.IntN(20) - 10
			}
		}
		for k := range c.k {
			for j := range 8 {
				B[k][j] = r.IntN(7) - 3
			}
		}
		encode := func(v int, typ string) uint32 {
			switch typ {
			case "f16":
				return uint32(narrow{16, 10, 15, 65504}.encode(float64(v), false))
			case "bf16":
				return math.Float32bits(float32(v)) >> 16
			case "tf32", "f32":
				return math.Float32bits(float32(v))
			case "e4m3":
				return uint32(narrow{8, 3, 7, 448}.encode(float64(v), true))
			case "e5m2":
				return uint32(narrow{8, 2, 15, 57344}.encode(float64(v), true))
			}
			return uint32(v)
		}
		each := 32 / c.bits // elements per register
		mask := uint32(1<<c.bits - 1)
		// Fragments, register by register, in memory for the lanes.
		var regs [32][]uint32
		na, nb := 16*c.k*c.bits/1024, 8*c.k*c.bits/1024
		for lane := range 32 {
			group, in := lane>>2, lane&3
			for reg := range na {
				var v uint32
				for i := range each {
					row, col := group+8*(reg%2), in*each+i+reg/2*4*each
					v |= encode(A[row][col], c.a) & mask << (c.bits * i)
				}
				regs[lane] = append(regs[lane], v)
			}
			for reg := range nb {
				var v uint32
				for i := range each {
					v |= encode(B[in*each+i+reg*4*each][group], c.b) & mask << (c.bits * i)
				}
				regs[lane] = append(regs[lane], v)
			}
			for reg := range c.regs {
				if c.d == "f16" {
					regs[lane] = append(regs[lane], encode(C[group+8*reg][in*2], "f16")|encode(C[group+8*reg][in*2+1], "f16")<<16)
				} else {
					regs[lane] = append(regs[lane], encode(C[group+8*(reg/2)][in*2+reg%2], c.d))
				}
			}
		}
		op := fmt.Sprintf("mma.sync.aligned.m16n8k%d.row.col.%s.%s.%s.%s", c.k, c.d, c.a, c.b, c.d)
		out := warpProduct(t, op, "", []int{na, nb, c.regs}, regs)
		for lane := range 32 {
			group, in := lane>>2, lane&3
			for reg := range c.regs {
				var want uint32
				sum := func(row, col int) int {
					s := C[row][col]
					for q := range c.k {
						s += A[row][q] * B[q][col]
					}
					return s
				}
				if c.d == "f16" {
					want = encode(sum(group+8*reg, in*2), "f16") | encode(sum(group+8*reg, in*2+1), "f16")<<16
				} else {
					want = encode(sum(group+8*(reg/2), in*2+reg%2), c.d)
				}
				if got := out[lane][reg]; got != want {
					t.Fatalf("%s, lane %d, register %d: got %#x, want %#x", op, lane, reg, got, want)
				}
			}
		}
	}
}
