package fabric

import (
	"slices"
	"time"
)

// verdict is what a cell says of one member's cables.
type verdict struct {
	cell   *cell
	record *record
	judge  *judge
	wired  bool
	shape  *shape
}

func (v *verdict) findings() []Finding {
	var out []Finding
	missing, shifted := v.missing()
	plugged := 0 // See count.
	for i := range v.record.ports {
		p := &v.record.ports[i]
		s := &v.cell.slots[v.judge.index[p.hint()]-1]
		var leaf *feature[*record]
		if p.leaf != "" {
			leaf = v.record.item.cables[plugged].feature
			plugged++
		}
		if kind := v.fault(p, s, leaf, shifted); kind != "" {
			f := p.finding(v.record.name)
			f.Kind, f.Group, f.Expected = kind, v.cell.key, s.expectation()
			out = append(out, f)
		}
	}
	for _, at := range missing {
		s := &v.cell.slots[at]
		out = append(out, Finding{
			Kind: Missing, Node: v.record.name, Group: v.cell.key,
			Rail: s.rail, Plane: s.plane, Expected: s.expectation(),
		})
	}
	slices.SortFunc(out, compareFindings)
	return out
}

// fault is what is wrong with a port, "" if nothing is.
func (v *verdict) fault(p *port, s *slot, leaf *feature[*record], shifted bool) Fault {
	switch {
	case !p.alive:
		return Dead
	case leaf == nil:
		return Unseen
	case p.leaf == s.expected:
		return ""
	case v.judge.on(leaf).foreign:
		return Miscabled
	case v.wired && !shifted && (!v.judge.fits(leaf, s) || s.agree > v.judge.landed(s, leaf)):
		return Miscabled
	}
	return ""
}

// missing are the slots that like nodes have and this one lacks. A lost HCA
// shifts the numbers of those behind it where rails are numbered by rank: then
// the lost one is told by the leaf that no port is on, and the others' numbers
// prove nothing.
func (v *verdict) missing() (slots []int, shifted bool) {
	have := make([]bool, len(v.cell.slots))
	for i := range v.record.ports {
		p := &v.record.ports[i]
		have[v.judge.index[p.hint()]-1] = true
	}
	var lacked []int
	for at := range v.cell.slots {
		if !have[at] && v.shape.has(at) {
			lacked = append(lacked, at)
		}
	}
	if len(lacked) == 0 || !v.wired {
		return lacked, false
	}
	for _, at := range lacked {
		shifted = shifted || v.record.on(v.cell.slots[at].expected)
	}
	if !shifted {
		return lacked, false
	}
	var unreached []int
	for at := range v.cell.slots {
		if v.shape.has(at) && !v.record.on(v.cell.slots[at].expected) {
			unreached = append(unreached, at)
		}
	}
	if len(unreached) < len(lacked) {
		return lacked, true
	}
	return unreached[:len(lacked)], true
}

func (s *slot) expectation() *Switch {
	if s.expected == "" {
		return nil
	}
	return &Switch{ID: s.expected, Name: s.name}
}

func (p *port) finding(node string) Finding {
	f := Finding{Node: node, HCA: p.hca, ID: p.id, Port: p.number, Rail: p.rail, Plane: p.plane}
	if p.since != 0 {
		f.Since = time.Unix(p.since, 0).UTC()
	}
	if p.leaf != "" {
		f.Found = &Switch{ID: p.leaf, Name: p.far.Name, Port: p.leafPort}
	}
	return f
}

// alone are the findings of a node that is in no cell.
func (r *record) alone() []Finding {
	var out []Finding
	for i := range r.ports {
		p := &r.ports[i]
		f := p.finding(r.name)
		f.Kind = Unseen
		if !p.alive {
			f.Kind = Dead
		}
		out = append(out, f)
	}
	slices.SortFunc(out, compareFindings)
	return out
}
