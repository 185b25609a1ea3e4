package fabrics

import (
	"math/rand/v2"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Wrong is a port with a cable that is not as planned.
type Wrong struct {
	// Dead and Missing distinguish a dead port and a lost HCA from a cable that is
	// elsewhere.
	Dead, Missing bool
	// Unsure is set if nothing shows where the port belongs.
	Unsure bool
	Node   string
	Rail   int32
	// Plane and the rest are as in the report. Found is empty for a dead or a lost port.
	Plane           int32
	Expected, Found string
}

// end is one port of the fabric.
type end struct{ node, rail int }

// Damage breaks that share of the fabric's ports, each in one of three ways:
// the cable goes to a leaf of another group, the port is dead, or its cable is
// exchanged with that of another port, of the same node half of the times.
func (f *Fabric) Damage(rng *rand.Rand, share float64) {
	ends := f.ends()
	for _, e := range ends {
		if rng.Float64() >= share {
			continue
		}
		r := f.at(e)
		switch rng.IntN(3) {
		case 0:
			f.miscable(rng, e)
		case 1:
			r.LinkState, r.Switch, r.SwitchPort = v1alpha1.LinkDown, nil, ""
			r.Source, r.Confidence = "", 0
		case 2:
			o := f.at(ends[rng.IntN(len(ends))])
			if rails := len(f.Nodes[e.node].Spec.Rails) - f.Plan.Storage; rng.IntN(2) == 0 {
				o = f.at(end{e.node, rng.IntN(rails)})
			}
			if o.Switch != nil && r.Switch != nil {
				r.Switch, o.Switch = o.Switch, r.Switch
				r.SwitchPort, o.SwitchPort = o.SwitchPort, r.SwitchPort
			}
		}
	}
}

func (f *Fabric) miscable(rng *rand.Rand, e end) {
	r := f.at(e)
	if r.Switch == nil || len(f.Plan.Sizes) < 2 {
		return
	}
	group := rng.IntN(len(f.Plan.Sizes) - 1)
	if group >= f.Nodes[e.node].Group {
		group++
	}
	leaf := f.Leaf(group, rng.IntN(f.Plan.Rails), rng.IntN(f.Plan.Planes))
	r.Switch, r.SwitchPort = &leaf, "64"
}

// Wrongs are the ports that are not as planned, by node, rail and plane.
func (f *Fabric) Wrongs() []Wrong {
	var out []Wrong
	for i := range f.Nodes {
		for _, c := range f.Nodes[i].Cables {
			if w := f.wrong(&f.Nodes[i], c); w.Missing || w.Dead || w.Found != c.Leaf {
				out = append(out, w)
			}
		}
	}
	return out
}

// wrong compares a port with its plan.
func (f *Fabric) wrong(n *Node, c Cable) Wrong {
	w := Wrong{Node: n.Name, Rail: c.Rail, Plane: c.Plane, Expected: c.Leaf}
	r := n.port(c)
	if w.Missing = r == nil; r != nil {
		w.Dead = r.LinkState != v1alpha1.LinkActive
	}
	if r != nil && r.Switch != nil {
		w.Found = r.Switch.ID
	}
	// It may have been built so, and may never have had a link.
	w.Unsure = n.Odd && w.Missing || n.CPU && (w.Missing || w.Dead && w.Found == "")
	if n.Group == NoGroup { // Among nodes of two groups.
		w.Expected, w.Unsure = "", true
	}
	for group := n.Group - 1; f.Plan.Shift > 0 && group <= n.Group+1; group++ {
		// Others of its group have that end by plan.
		w.Unsure = w.Unsure || w.Found == f.Leaf(group, int(c.Rail), int(c.Plane)).ID
	}
	return w
}

// port is the report of a cable's port, nil if its HCA is lost.
func (n *Node) port(c Cable) *v1alpha1.Rail {
	for i := range n.Spec.Rails {
		if r := &n.Spec.Rails[i]; r.Role == "fabric" && r.Rail == c.Rail && r.Plane == c.Plane {
			return r
		}
	}
	return nil
}

func (f *Fabric) at(e end) *v1alpha1.Rail { return &f.Nodes[e.node].Spec.Rails[e.rail] }

func (f *Fabric) ends() []end {
	var out []end
	for i := range f.Nodes {
		for _, c := range f.Nodes[i].Cables {
			for j := range f.Nodes[i].Spec.Rails {
				if r := &f.Nodes[i].Spec.Rails[j]; r == f.Nodes[i].port(c) {
					out = append(out, end{i, j})
				}
			}
		}
	}
	return out
}
