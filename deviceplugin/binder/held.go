package binder

import "context"

// Held is a device that a pod holds.
type Held struct {
	Resource, ID string
	// Pod is its namespace and name, or "pod UID".
	Pod string
	// Unlisted tells that only the kubelet's checkpoint knows the pod, which
	// keeps those that have ended until it is written again.
	Unlisted bool
}

// admitted is who holds what Allocate gave out and the kubelet has not
// accounted for yet.
const admitted = "a pod that is being admitted"

// Held are the devices of all resources that pods hold: by either of the
// kubelet's accounts, by ours where the kubelet has lost its own or may have,
// and what was given out and not accounted for yet. A container with shares also
// holds those of the cards that it is bound to, which need not be those of its
// device IDs: such an ID has no number. It fails if one of the kubelet's two
// accounts cannot be read.
func (b *Binder) Held(ctx context.Context) ([]Held, error) {
	now, err := b.look(ctx)
	if err == nil {
		err = now.checkpointErr
	}
	if err != nil {
		return nil, err
	}
	var held []Held
	for i := range now.holdings {
		h := &now.holdings[i]
		for _, id := range h.ids {
			held = append(held, Held{h.resource, id, h.String(), h.Name == ""})
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	shares := b.options.Config().Resources.SGPU
	for _, c := range b.ledgerLocked(now).claims {
		held = append(held, Held{Resource: shares, ID: c.Share.UUID + slotMark, Pod: c.String()})
	}
	b.accountLocked(now)
	for _, r := range b.records {
		by := ""
		switch {
		case r.Owner == nil && !b.accounted[r.Device] && b.options.Now().Sub(r.Created) < unclaimedFor:
			by = admitted
		case r.Owner != nil && (b.unsure || b.lost[*r.Owner]):
			by = r.Owner.String()
		default:
			continue
		}
		for _, id := range r.IDs {
			held = append(held, Held{Resource: r.Resource, ID: id, Pod: by})
		}
		for _, share := range r.Shares {
			held = append(held, Held{Resource: r.Resource, ID: share.UUID + slotMark, Pod: by})
		}
	}
	return held, nil
}

// accountLocked notes the records that the kubelet has in its account, which has
// the names that Allocate gave. It is for holders of mu.
func (b *Binder) accountLocked(now *account) {
	was := b.accounted
	b.accounted = make(map[string]bool)
	for device := range liveNames(now) {
		b.accounted[device] = true
	}
	for device := range was {
		if b.records[device] != nil {
			b.accounted[device] = true
		}
	}
}
