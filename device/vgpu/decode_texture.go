//go:build linux && cgo

package vgpu

import (
	"slices"

	"fisub/device/vgpu/ptx"
)

// geometries holds the codes of a texture instruction's geometry: its dimensions, and whether it has layers or is a
// cube.
var geometries = map[string]uint8{"1d": 1, "2d": 2, "3d": 3, "a1d": 1 | texLayered, "a2d": 2 | texLayered,
	"cube": 2 | texCube, "acube": 2 | texCube | texLayered}

// coordinates returns the places of the coordinates of a texture instruction with the given geometry, the layer first.
func (d *decoder) coordinates(o ptx.Operand, geometry uint8, typ string) (places []int32) {
	n := int(geometry & 3)
	if geometry&texCube != 0 {
		n++
	}
	if geometry&texLayered != 0 {
		n++
	}
	all := elements(o)
	if len(all) < n {
		d.lack(d.in.Op)
	}
	for i, c := range all[:n] { // the others are there to fill a vector
		if i == 0 && geometry&texLayered != 0 {
			places = append(places, d.src(c, "u32"))
			continue
		}
		places = append(places, d.src(c, typ))
	}
	return places
}

// object returns the operands in [object, {coordinates}].
func (d *decoder) object(o ptx.Operand) (handle int32, coordinates ptx.Operand) {
	if o.Kind != ptx.Memory || len(o.Elems) != 2 || o.Int != 0 {
		d.lack(d.in.Op)
	}
	return d.src(o.Elems[0], "b64"), o.Elems[1]
}

// texture decodes tex and tld4. A level of detail has no effect: textures have one level.
func (d *decoder) texture() {
	geometry := d.required(geometries)
	args := 2
	switch {
	case d.has("level"):
		args = 3
	case d.has("grad"):
		args = 4
	}
	result := d.arg(0)
	from, to := d.typ(0), d.typ(1)
	if len(d.in.Args) != args || len(elements(result)) != 4 || result.Pair != nil || width(to) != 4 || to == "f16x2" {
		d.lack(d.in.Op)
	}
	in := inst{op: opTex, kind: geometry}
	if from == "s32" {
		in.kind |= texInteger
	}
	if d.parts[0] == "tld4" {
		in.kind |= texGather
		in.imm = int64(slices.Index([]string{"r", "g", "b", "a"}, d.parts[1]))
	}
	handle, coordinates := d.object(d.arg(1))
	var places []int32
	for _, e := range result.Elems {
		places = append(places, d.dst(e, "b32"))
	}
	in.a = handle
	in.x = d.more(append(places, d.coordinates(coordinates, geometry, from)...)...)
	d.emit(in)
}

// surface decodes suld.b and sust.b.
func (d *decoder) surface() {
	if !d.has("b") {
		d.lack(d.in.Op)
	}
	geometry, t, write := d.required(geometries), d.typ(0), d.parts[0] == "sust"
	value, place := d.arg(0), d.arg(1)
	if write {
		value, place = place, value
	}
	handle, coordinates := d.object(place)
	in := inst{op: opSurf, kind: geometry, a: handle, c: int32(width(t)),
		imm: int64(d.required(map[string]uint8{"trap": surfTrap, "clamp": surfClamp, "zero": surfZero}))}
	if wide(t) {
		in.c |= m64
	}
	var places []int32
	for _, e := range elements(value) {
		if write {
			places = append(places, d.src(e, t))
		} else {
			places = append(places, d.dst(e, t))
		}
	}
	if in.n = int32(len(places)); write {
		in.imm |= surfWrite
	}
	in.x = d.more(append(places, d.coordinates(coordinates, geometry, "s32")...)...)
	d.emit(in)
}
