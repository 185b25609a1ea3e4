package rdma

import (
	"math"
	"strings"

	"github.com/safchain/ethtool"
)

// driverStatistics returns what only the driver's statistics of a network device have (ethtool -S): the errors that
// forward error correction could not correct, and the PFC frames that came in. What a driver does not have is 0. mlx5:
// Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst; bnxt_en: bnxt_ethtool.c.
func driverStatistics(netdev string) (fec, pauses int64) {
	all, err := ethtool.Stats(netdev)
	if err != nil {
		return 0, 0 // The device has none, or is gone.
	}
	for name, value := range all {
		n := int64(min(value, math.MaxInt64>>8))
		mlx5, isMLX5 := strings.CutPrefix(name, "rx_prio")
		switch {
		case name == "rx_pcs_symbol_err_phy", name == "rx_fec_uncorrectable_blocks":
			fec += n
		case isMLX5 && strings.TrimLeft(mlx5, "0123456789") == "_pause", strings.HasPrefix(name, "rx_pfc_ena_frames_pri"):
			pauses += n
		}
	}
	return fec, pauses
}
