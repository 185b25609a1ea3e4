package fabric_test

import (
	"testing"

	"github.com/heddle-dev/heddle/topo/fabric"
)

func TestSentence(t *testing.T) {
	at := fabric.Switch{ID: "b83fd20000000a01", Name: "leaf-07", Port: "12"}
	want := fabric.Switch{ID: "b83fd20000000b01"}
	for _, tt := range []struct {
		finding fabric.Finding
		want    string
	}{
		{
			fabric.Finding{Kind: fabric.Miscabled, HCA: "mlx5_3", Port: 1, Rail: 3, Found: at, Expected: want},
			"mlx5_3 port 1 (rail 3) is on leaf-07 port 12, expected b83fd20000000b01",
		},
		{fabric.Finding{Kind: fabric.Miscabled, ID: "0000:18:00.0", Rail: 3, Plane: 1, Found: at}, "0000:18:00.0 (rail 3 plane 1) is on leaf-07 port 12"},
		{fabric.Finding{Kind: fabric.Dead, HCA: "mlx5_3", Port: 1, Rail: 3, Expected: at}, "mlx5_3 port 1 (rail 3) has no active link, expected leaf-07 port 12"},
		{fabric.Finding{Kind: fabric.Missing, Rail: 3, Expected: want}, "rail 3 has no port, expected b83fd20000000b01"},
		{fabric.Finding{Kind: fabric.Duplicate, HCA: "mlx5_3", Port: 1, Rail: 3, Other: "n2"}, "mlx5_3 port 1 (rail 3) has the GUID of an HCA of node n2"},
		{fabric.Finding{Kind: fabric.Unseen, HCA: "mlx5_3", Port: 1, Rail: 3}, "mlx5_3 port 1 (rail 3) is active, and its switch is not known"},
		{fabric.Finding{Kind: fabric.BadPath, Other: "box-1"}, "most other nodes of box-1 report another group above it"},
		{
			fabric.Finding{Kind: fabric.Degraded, HCA: "mlx5_3", Port: 1, Rail: 3, What: "symbol-errors", Limit: "1.0e-12 per bit (IBTA)"},
			"mlx5_3 port 1 (rail 3) is degraded: symbol-errors above the limit, 1.0e-12 per bit (IBTA)",
		},
		{
			fabric.Finding{Kind: fabric.Degraded, HCA: "mlx5_3", Port: 1, Rail: 3, End: "switch", What: "symbol-errors", Limit: "1.0e-12 per bit (IBTA)"},
			"mlx5_3 port 1 (rail 3) is degraded at the switch's end: symbol-errors above the limit, 1.0e-12 per bit (IBTA)",
		},
		{
			fabric.Finding{Kind: fabric.Degraded, ID: "GPU-1", Link: "NVLink 3", What: "nvlink-crc-errors", Limit: "100 per second (DCGM)"},
			"GPU GPU-1 NVLink 3 is degraded: nvlink-crc-errors above the limit, 100 per second (DCGM)",
		},
		{
			fabric.Finding{Kind: fabric.Degraded, ID: "GPU-1", What: "pcie-width", Limit: "x16 (PCIe)"},
			"GPU GPU-1 is degraded: pcie-width below x16 (PCIe)",
		},
		{
			fabric.Finding{
				Kind: fabric.Degraded, ID: "0000:06:00.0", Link: "NVSwitch link 30", What: "sxid-fatal", Value: "20034 LTSSM Fault Up",
			},
			"NVSwitch 0000:06:00.0 link 30 is degraded: fatal error (SXid) 20034 LTSSM Fault Up",
		},
		{fabric.Finding{Kind: fabric.BadPath}, "the reported path contradicts the levels"},
	} {
		if got := tt.finding.Sentence(); got != tt.want {
			t.Errorf("%s\nwant %s", got, tt.want)
		}
	}
}
