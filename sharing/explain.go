package sharing

import (
	"fmt"
	"strings"
)

// Explain says why [Place] finds no cards for a request.
func Explain(cards []Card, r *Request) string {
	var words []string
	able := 0
	for i := range cards {
		if why := cards[i].Refuses(r); why.None() {
			able++
		} else {
			words = append(words, why.String())
		}
	}
	return fmt.Sprintf("%d cards are asked for, %d of %d can give that. ", r.Cards, able, len(cards)) +
		strings.Join(words, ". ")
}
