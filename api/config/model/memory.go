package model

import (
	"math"
	"strconv"
	"strings"
)

// Memory is the size that a GPU is sold with, such as 80GB, from its product
// name and the MiB that NVML reports. Empty means unknown.
//
// A size in the name wins, if it is the GPU's: a GH200 names the memory of its
// CPU ("NVIDIA GH200 480GB" has 97871 MiB). Otherwise it is the table below,
// and for what is not in it the smallest size on the market that is not less.
func Memory(product string, mib int64) string {
	gib := float64(mib) / 1024
	for _, word := range strings.FieldsFunc(product, func(r rune) bool { return r == ' ' || r == '-' }) {
		size, ok := sizeOf(word)
		if ok && (mib == 0 || float64(size) >= gib*0.97 && float64(size) <= gib*1.15) {
			return strconv.Itoa(size) + "GB"
		}
	}
	if mib <= 0 {
		return ""
	}
	if size := known(mib); size != 0 {
		return strconv.Itoa(size) + "GB"
	}
	for _, size := range sold() {
		// One percent of slack: a few boards report a little more.
		if float64(size)*1.01 >= gib {
			return strconv.Itoa(size) + "GB"
		}
	}
	return strconv.FormatFloat(math.Ceil(gib), 'f', 0, 64) + "GB"
}

// sizeOf reads "80GB".
func sizeOf(word string) (size int, ok bool) {
	digits, unit := strings.CutSuffix(strings.ToUpper(word), "GB")
	size, err := strconv.Atoi(digits)
	return size, unit && err == nil && size > 0
}

// known are totals in MiB as nvidia-smi prints them with ECC as delivered, and
// the size in the data sheet of the board (www.nvidia.com/en-us/data-center,
// the page of each product).
func known(mib int64) (gb int) {
	switch mib {
	case 15360: // T4.
		return 16
	case 16160, 16384: // P100, V100.
		return 16
	case 23028, 23034, 24564: // A10 and A10G, L4, RTX 4090.
		return 24
	case 24258, 24576: // A30.
		return 24
	case 32510, 32768: // V100.
		return 32
	case 32607: // RTX 5090.
		return 32
	case 40536, 40960: // A100.
		return 40
	case 46068, 49140: // A40, L40, L40S; RTX 6000 Ada without ECC.
		return 48
	case 81251, 81559, 81920: // A100 and A800 PCIe; H100 and H800; A100 SXM.
		return 80
	case 95830: // H100 NVL.
		return 94
	case 97871, 97887: // H20 and GH200; RTX PRO 6000.
		return 96
	case 143771: // H200 and H20 with HBM3e.
		return 141
	case 183359: // B200.
		return 180
	case 189471: // GB200.
		return 186
	case 275040: // B300.
		return 288
	}
	return 0
}

// sold are the sizes of memory, in GB, that accelerators come with.
func sold() []int {
	return []int{
		1, 2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 144, 180, 186, 192, 256,
		288,
	}
}
