package quota

// cost orders GPUs for one request, the first number before the second, and so
// on; see [Place] for what they are.
type cost [4]int64

func (a *cost) compare(b *cost) int {
	for k := range a {
		if a[k] != b[k] {
			if a[k] < b[k] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// loss is the cost with binpack, in percent times MiB.
func (c *GPU) loss(r *Request) cost {
	v, m := int64(Whole-c.VCore), c.MemoryMiB-c.UsedMiB
	after := (v - int64(r.VCore)) * (m - c.needs(r))
	idle := int64(0)
	if c.Consumers == 0 {
		idle = 1
	}
	return cost{idle, v*m - after, after}
}

// load is the cost with spread, in millionths.
func (c *GPU) load(r *Request) cost {
	const million = 1_000_000
	compute := int64(c.VCore+r.VCore) * (million / Whole)
	memory := int64(million)
	if c.MemoryMiB > 0 {
		memory = (c.UsedMiB + c.needs(r)) * million / c.MemoryMiB
	}
	return cost{max(compute, memory), min(compute, memory), int64(c.Consumers)}
}
