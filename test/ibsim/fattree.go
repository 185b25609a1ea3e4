package ibsim

import (
	"fmt"
	"io"
)

// FatTree is a rail-optimized fat tree of two levels: in a unit of PerUnit
// hosts, all HCAs of one rail are on one leaf, and every leaf has uplinks to
// every spine.
type FatTree struct {
	Hosts, Rails, PerUnit, Spines int
	// Uplinks is how many cables a leaf has to each spine.
	Uplinks int
}

// HCA is the node ID of a host's HCA; its GUID is what follows "H-".
func (f FatTree) HCA(host, rail int) string {
	return fmt.Sprintf("H-%016x", 0x946dae0300000000+uint64(host)<<16+uint64(rail)<<8)
}

// Leaf is the switch of a rail in a host's unit, and the port that the host's
// cable is in.
func (f FatTree) Leaf(host, rail int) (id string, port int) {
	unit := host / f.PerUnit
	return fmt.Sprintf("S-%016x", 0xb83fd20300000000+uint64(unit*f.Rails+rail)<<8), host%f.PerUnit + 1
}

// LeafName is what that switch calls itself.
func (f FatTree) LeafName(host, rail int) string {
	return fmt.Sprintf("leaf-su%d-rail%d", host/f.PerUnit, rail)
}

// Spine is a switch of the upper level.
func (f FatTree) Spine(n int) string { return fmt.Sprintf("S-%016x", 0xb83fd20300100000+uint64(n)<<8) }

// units is how many units there are.
func (f FatTree) units() int { return (f.Hosts + f.PerUnit - 1) / f.PerUnit }

// Write writes the fabric in ibnetdiscover's form. All switches have 64 ports,
// or as many as they need.
func (f FatTree) Write(w io.Writer) error {
	b := &printer{w: w}
	for h := range f.Hosts {
		for r := range f.Rails {
			leaf, port := f.Leaf(h, r)
			id := f.HCA(h, r)
			b.printf("vendid=0x2c9\ndevid=0x1021\nsysimgguid=0x%[1]s\ncaguid=0x%[1]s\n", id[2:])
			b.printf("Ca\t1 %q\t\t# \"node%03d mlx5_%d\"\n", id, h, r)
			b.printf("[1](%s) \t%q[%d]\t\t# lid 0 lmc 0 \"leaf\" lid 0 4xHDR\n\n", id[2:], leaf, port)
		}
	}
	for u := range f.units() {
		for r := range f.Rails {
			f.writeLeaf(b, u, r)
		}
	}
	for s := range f.Spines {
		f.writeSpine(b, s)
	}
	return b.err
}

func (f FatTree) writeLeaf(b *printer, unit, rail int) {
	first := unit * f.PerUnit
	id, _ := f.Leaf(first, rail)
	b.sw(id, f.LeafName(first, rail), f.PerUnit+f.Spines*f.Uplinks)
	for h := first; h < min(first+f.PerUnit, f.Hosts); h++ {
		b.printf("[%d]\t%q[1]\t\t# \"host\" lid 0 4xHDR\n", h-first+1, f.HCA(h, rail))
	}
	for s := range f.Spines {
		for k := range f.Uplinks {
			b.printf("[%d]\t%q[%d]\t\t# \"spine\" lid 0 4xHDR\n",
				f.PerUnit+s*f.Uplinks+k+1, f.Spine(s), (unit*f.Rails+rail)*f.Uplinks+k+1)
		}
	}
	b.printf("\n")
}

func (f FatTree) writeSpine(b *printer, s int) {
	b.sw(f.Spine(s), fmt.Sprintf("spine%d", s), f.units()*f.Rails*f.Uplinks)
	for leaf := range f.units() * f.Rails {
		for k := range f.Uplinks {
			id, _ := f.Leaf(leaf/f.Rails*f.PerUnit, leaf%f.Rails)
			b.printf("[%d]\t%q[%d]\t\t# \"leaf\" lid 0 4xHDR\n", leaf*f.Uplinks+k+1, id, f.PerUnit+s*f.Uplinks+k+1)
		}
	}
	b.printf("\n")
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) sw(id, name string, ports int) {
	p.printf("vendid=0x2c9\ndevid=0xd2f2\nsysimgguid=0x%[1]s\nswitchguid=0x%[1]s(%[1]s)\n", id[2:])
	p.printf("Switch\t%d %q\t\t# %q enhanced port 0 lid 0 lmc 0\n", max(64, ports), id, name)
}
