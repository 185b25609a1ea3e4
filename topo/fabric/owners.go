package fabric

// owners tell which node reports an HCA's GUID first: a hash table with linear
// probing, because looking 130,000 GUIDs up for the first time is a sixth of a
// first tree with Go's map, which touches three places of memory for each.
type owners struct {
	// slots are a power of two, at most two thirds of them used.
	slots []owned
	used  int
	shift int // The hash's upper bits choose the slot.
}

// owned is a GUID and its node; a slot without a node is free.
type owned struct {
	guid   uint64
	record *record
}

// leastSlots is a power of two.
const leastSlots = 64

// reserve makes room for n GUIDs altogether.
func (o *owners) reserve(n int) {
	size, shift := leastSlots, 64-6
	for 2*size < 3*n {
		size, shift = 2*size, shift-1
	}
	if size <= len(o.slots) {
		return
	}
	old := o.slots
	o.slots, o.shift = make([]owned, size), shift
	for _, s := range old {
		if s.record != nil {
			o.slots[o.find(s.guid)] = s
		}
	}
}

// home is where a GUID is if nothing is in the way. GUIDs of one vendor differ
// in few bits, which the multiplication (by 2^64 over the golden ratio) spreads.
func (o *owners) home(guid uint64) int {
	return int(guid * 0x9e3779b97f4a7c15 >> o.shift) //nolint:gosec // Less than len(slots).
}

// find is the slot of a GUID, or the free one where it would be.
func (o *owners) find(guid uint64) int {
	i := o.home(guid)
	for o.slots[i].record != nil && o.slots[i].guid != guid {
		i = (i + 1) & (len(o.slots) - 1)
	}
	return i
}

// claim makes a node the GUID's if it is nobody's, and returns whose it is.
func (o *owners) claim(guid uint64, r *record) *record {
	if 3*o.used >= 2*len(o.slots) {
		o.reserve(2*o.used + 1)
	}
	s := &o.slots[o.find(guid)]
	if s.record == nil {
		*s = owned{guid, r}
		o.used++
	}
	return s.record
}

// give makes a GUID that is somebody's another's.
func (o *owners) give(guid uint64, r *record) { o.slots[o.find(guid)].record = r }

// release frees a GUID if it is this node's.
func (o *owners) release(guid uint64, r *record) {
	if len(o.slots) == 0 {
		return
	}
	i := o.find(guid)
	if o.slots[i].record != r {
		return
	}
	o.used--
	// What had to step aside for it moves up.
	last := len(o.slots) - 1
	for j := (i + 1) & last; o.slots[j].record != nil; j = (j + 1) & last {
		if home := o.home(o.slots[j].guid); (j-home)&last >= (j-i)&last {
			o.slots[i] = o.slots[j]
			i = j
		}
	}
	o.slots[i] = owned{}
}
