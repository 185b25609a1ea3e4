package ibsim

import (
	"fmt"
	"io"
)

// Director is one director switch: line boards with a port for each HCA, and
// spine boards that every line board has a link to. Which board an HCA is on has
// nothing to do with its host or rail.
type Director struct{ Hosts, Rails, Boards, Spines int }

// DirectorGUID is the system image GUID of the chassis.
const DirectorGUID = "b83fd20300900000"

// HCA is the node ID of a host's HCA.
func (d Director) HCA(host, rail int) string { return FatTree{}.HCA(host, rail) }

// Board is the number of the line board of an HCA, and the port that its cable is in.
func (d Director) Board(host, rail int) (board, port int) {
	n := host*d.Rails + rail
	return n * 7 % d.Boards, n/d.Boards + 1
}

// Name is what a line board calls itself.
func (d Director) Name(board int) string { return fmt.Sprintf("MF0;director:CS8500/L%02d/U1", board+1) }

func (d Director) line(board int) string { return fmt.Sprintf("S-b83fd203009100%02x", board) }

func (d Director) spine(n int) string { return fmt.Sprintf("S-b83fd203009200%02x", n) }

// Write writes the fabric in ibnetdiscover's form. Boards must have no factor of
// seven, so that the boards are filled alike.
func (d Director) Write(w io.Writer) error {
	b := &printer{w: w}
	perBoard := (d.Hosts*d.Rails + d.Boards - 1) / d.Boards
	hosts := make([]string, d.Boards) // The links of every line board.
	for h := range d.Hosts {
		for r := range d.Rails {
			board, port := d.Board(h, r)
			id := d.HCA(h, r)
			b.printf("vendid=0x2c9\ndevid=0x1021\nsysimgguid=0x%[1]s\ncaguid=0x%[1]s\n", id[2:])
			b.printf("Ca\t1 %q\t\t# \"node%03d mlx5_%d\"\n", id, h, r)
			b.printf("[1](%s) \t%q[%d]\t\t# lid 0 lmc 0 \"line\" lid 0 4xHDR\n\n", id[2:], d.line(board), port)
			hosts[board] += fmt.Sprintf("[%d]\t%q[1]\t\t# \"host\" lid 0 4xHDR\n", port, id)
		}
	}
	for board := range d.Boards {
		b.board(DirectorGUID, d.line(board), d.Name(board), perBoard+d.Spines)
		b.printf("%s", hosts[board])
		for s := range d.Spines {
			b.printf("[%d]\t%q[%d]\t\t# \"spine\" lid 0 4xHDR\n", perBoard+s+1, d.spine(s), board+1)
		}
		b.printf("\n")
	}
	for s := range d.Spines {
		b.board(DirectorGUID, d.spine(s), fmt.Sprintf("MF0;director:CS8500/S%02d/U1", s+1), d.Boards)
		for board := range d.Boards {
			b.printf("[%d]\t%q[%d]\t\t# \"line\" lid 0 4xHDR\n", board+1, d.line(board), perBoard+s+1)
		}
		b.printf("\n")
	}
	return b.err
}
