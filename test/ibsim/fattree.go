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
	// PerLeaf is how many rails share a leaf, 0 is 1. The first Small hosts of a
	// unit have HCAs on the first half of the rails only.
	PerLeaf, Small int
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
	n := max(f.PerLeaf, 1)
	return fmt.Sprintf("S-%016x", 0xb83fd20300000000+uint64(host/f.PerUnit*f.Rails+rail/n*n)<<8),
		host%f.PerUnit*n + rail%n + 1
}

// LeafName is what that switch calls itself.
func (f FatTree) LeafName(host, rail int) string {
	return fmt.Sprintf("leaf-su%d-rail%d", host/f.PerUnit, rail-rail%max(f.PerLeaf, 1))
}

// Spine is a switch of the upper level.
func (f FatTree) Spine(n int) string { return fmt.Sprintf("S-%016x", 0xb83fd20300100000+uint64(n)<<8) }

// HCAs is how many a host has, on the first rails.
func (f FatTree) HCAs(host int) int {
	if host%f.PerUnit < f.Small {
		return f.Rails / 2
	}
	return f.Rails
}

// units is how many units there are.
func (f FatTree) units() int { return (f.Hosts + f.PerUnit - 1) / f.PerUnit }

// Write writes the fabric in ibnetdiscover's form. All switches have 64 ports,
// or as many as they need.
func (f FatTree) Write(w io.Writer) error {
	b := &printer{w: w}
	f.PerLeaf = max(f.PerLeaf, 1)
	for h := range f.Hosts {
		for r := range f.HCAs(h) {
			leaf, port := f.Leaf(h, r)
			id := f.HCA(h, r)
			b.printf("vendid=0x2c9\ndevid=0x1021\nsysimgguid=0x%[1]s\ncaguid=0x%[1]s\n", id[2:])
			b.printf("Ca\t1 %q\t\t# \"node%03d mlx5_%d\"\n", id, h, r)
			b.printf("[1](%s) \t%q[%d]\t\t# lid 0 lmc 0 \"leaf\" lid 0 4xHDR\n\n", id[2:], leaf, port)
		}
	}
	for u := range f.units() {
		for r := 0; r < f.Rails; r += f.PerLeaf {
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
	down := f.PerUnit * f.PerLeaf
	b.sw(id, f.LeafName(first, rail), down+f.Spines*f.Uplinks)
	for h := first; h < min(first+f.PerUnit, f.Hosts); h++ {
		for r := rail; r < min(rail+f.PerLeaf, f.HCAs(h)); r++ {
			_, port := f.Leaf(h, r)
			b.printf("[%d]\t%q[1]\t\t# \"host\" lid 0 4xHDR\n", port, f.HCA(h, r))
		}
	}
	for s := range f.Spines {
		for k := range f.Uplinks {
			b.printf("[%d]\t%q[%d]\t\t# \"spine\" lid 0 4xHDR\n",
				down+s*f.Uplinks+k+1, f.Spine(s), (unit*f.Rails+rail)/f.PerLeaf*f.Uplinks+k+1)
		}
	}
	b.printf("\n")
}

func (f FatTree) writeSpine(b *printer, s int) {
	leaves := f.Rails / f.PerLeaf // Of a unit.
	b.sw(f.Spine(s), fmt.Sprintf("spine%d", s), f.units()*leaves*f.Uplinks)
	for leaf := range f.units() * leaves {
		for k := range f.Uplinks {
			id, _ := f.Leaf(leaf/leaves*f.PerUnit, leaf%leaves*f.PerLeaf)
			b.printf("[%d]\t%q[%d]\t\t# \"leaf\" lid 0 4xHDR\n",
				leaf*f.Uplinks+k+1, id, f.PerUnit*f.PerLeaf+s*f.Uplinks+k+1)
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

func (p *printer) sw(id, name string, ports int) { p.board(id[2:], id, name, ports) }

// board is a switch in a chassis of that system image GUID.
func (p *printer) board(system, id, name string, ports int) {
	p.printf("vendid=0x2c9\ndevid=0xd2f2\nsysimgguid=0x%[1]s\nswitchguid=0x%[2]s(%[2]s)\n", system, id[2:])
	p.printf("Switch\t%d %q\t\t# %q enhanced port 0 lid 0 lmc 0\n", max(64, ports), id, name)
}
