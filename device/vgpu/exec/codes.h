// The codes that the executor shares with Go. `go generate ./device/vgpu` generates codes.go from this file and ops.h.
// In "// Go: space" after an enum, "space" is the prefix of its constants in Go; without it the names are converted
// unchanged.
#pragma once

// An operand is encoded as offset << 2 | base, where base is one of these.
enum { IN_FRAME, IN_POOL, IN_WARP };

// A branch may end here; the guard is negated; the first of a PTX instruction with an entry in vg_func.tracks.
enum { FLAG_LEADER = 1, FLAG_NEGATED = 2, FLAG_TRACKED = 4 };

// Hazards, as bit numbers in vg_launch.strict. A hazard in strict is a fault; of others the first of each kind is
// recorded. Ended threads are checked only if they are faults. The executor does not produce refusals.
enum {
  HAZARD_SHARED, HAZARD_RACE, HAZARD_LOCAL, HAZARD_DIVISION, HAZARD_REFUSAL, HAZARD_ENDED, HAZARD_GLOBAL, HAZARD_REGISTER,
  HAZARD_OUTSIDE_MASK, HAZARD_ASYNC, HAZARD_PROXY, HAZARD_NOTE, HAZARD_MBARRIER, HAZARD_CLUSTER, HAZARD_WIDTH,
  HAZARD_COUNT
};
#define HAZARD_NONE (-1)

// Kinds of accesses to global memory. Strong ones are volatile, relaxed or stronger, or atomic.
enum { USE_READ = 1, USE_WRITE = 2, USE_STRONG_READ = 4, USE_STRONG_WRITE = 8 };

// Unsupported features that only the executor detects.
enum { FEATURE_INSTRUCTION, FEATURE_INTERLEAVED, FEATURE_PACKED, FEATURE_SWIZZLE, FEATURE_LOCAL };

// The faults: X(name, hazard, arguments). FAULT raises them; fault.go has the text of each. size is in bytes, other is
// the location of another access. missing_lanes, deadlock and spin_* are waits that never end.
#define FAULTS(X)                                                                                                      \
  X(out_of_bounds, NONE, uint64_t address; int32_t size; bool write;)                                                  \
  X(read_only, NONE, uint64_t address; int32_t size;)                                                                  \
  X(misaligned, NONE, uint64_t address; int32_t multiple; bool write, outside;) /* outside all allocations */          \
  X(copy_size, NONE, uint32_t size; int32_t multiple;)                                                                 \
  X(shared_address, NONE, uint64_t address;)                                                                           \
  X(shared_range, NONE, int64_t offset; int32_t size, limit; bool write;) /* limit: bytes of shared memory */          \
  X(local_range, NONE, int32_t size; bool write;)                                                                      \
  X(unwritten_shared, SHARED, )                                                                                        \
  X(unwritten_local, LOCAL, int32_t size;)                                                                             \
  X(unwritten_global, GLOBAL, uint64_t address; int32_t size;)                                                         \
  X(unwritten_register, REGISTER, )                                                                                    \
  X(folded_register, REGISTER, ) /* an operand is a constant NaN */                                                    \
  X(stored_register, REGISTER, vg_location store;)                                                                     \
  X(in_flight, NONE, vg_location other, waited; int32_t other_thread, other_rank, missing;) /* missing: a MISSING_* */ \
  X(race, RACE, uint64_t address; bool global, write;                                                                  \
    vg_location other; int32_t other_thread; bool other_write, other_block; int32_t other_cluster, other_rank;)        \
  X(async_source, ASYNC, vg_location other;) /* a write to shared memory that the operation at other still reads */   \
  X(async_late, NOTE, ) /* the block ends while a bulk store reads its shared memory */                                \
  X(async_unfinished, ASYNC, ) /* the same for other operations */                                                              \
  X(async_result, ASYNC, uint64_t address; vg_location other;) /* a read of global memory that other still writes */  \
  X(proxy_fence, PROXY, vg_location other; int32_t other_thread;) /* other: a write */                                 \
  X(proxy_chain, NOTE, vg_location other; int32_t other_thread;)                                                  \
  X(map_fence, PROXY, vg_location other;)                                                                              \
  X(mbarrier_state, MBARRIER, bool live;) /* initialised although it is live, or used although it is not */            \
  X(cluster_ended, NONE, int32_t rank;)                                                                                \
  X(cluster_start, CLUSTER, int32_t rank;) /* nothing orders the access after the start of the block of this rank */   \
  X(cluster_end, CLUSTER, int32_t rank;) /* or before its end */                                                       \
  X(element_width, WIDTH, uint64_t address; int32_t size, element; bool write;) /* within an element of more bytes */   \
  X(division, DIVISION, )                                                                                              \
  X(outside_mask, OUTSIDE_MASK, uint32_t mask;)                                                                        \
  X(absent_lane, OUTSIDE_MASK, int32_t lane, why; vg_location shuffle;) /* why: an ABSENT_* */                         \
  X(ended_threads, ENDED, int32_t threads;)                                                                            \
  X(ended_lanes, ENDED, uint32_t ended, never_started;)                                                                \
  X(missing_lanes, NONE, uint32_t arrived, missing;)                                                                   \
  X(deadlock, NONE, int32_t barrier, arrived, expected;)                                                               \
  X(barrier_count, NONE, int32_t barrier, threads, earlier_threads; vg_location earlier;)                              \
  X(spin_cluster, NONE, ) /* at barrier.cluster */                                                                     \
  X(spin_warpgroup, NONE, ) /* at wgmma.wait_group */                                                                  \
  X(spin_read, NONE, int32_t space; uint64_t address, value;)                                                          \
  X(spin_mbarrier, NONE, int32_t space; uint64_t address, state; int32_t phase;)                                       \
  X(mbarrier_arrivals, NONE, int32_t arrivals, expected;)                                                              \
  X(tensor_map_memory, NONE, bool shared;) /* else local */                                                            \
  X(tensor_map, NONE, uint64_t address; int32_t dimensions; bool im2col;)                                              \
  X(coordinate, NONE, int32_t coordinate, size;) /* size: of an element */                                             \
  X(descriptor, NONE, uint64_t address; int64_t stride; int32_t extent, dimension, size; bool base;)                   \
  X(texture_object, NONE, uint64_t handle; bool surface;) /* no such object */                                        \
  X(texture_shape, NONE, int32_t dims; bool layered, cube, linear;) /* of the object, which the instruction does not fit */ \
  X(surface_range, NONE, int32_t x, y, z, size; uint32_t width, height, depth; bool write;) /* x and width in bytes */ \
  X(tmem_alloc, NONE, int32_t columns;)                                                                                \
  X(tmem_dealloc, NONE, uint32_t address; int32_t columns;)                                                            \
  X(tmem_leak, NONE, )                                                                                                 \
  X(tmem_range, NONE, uint32_t address; int32_t columns; bool write;)                                                  \
  X(trap, NONE, )                                                                                                      \
  X(assertion, NONE, uint64_t message, file; int32_t line;)                                                            \
  X(printf_string, NONE, uint64_t address; bool skipped;) /* skipped: a conversion that CUDA does not have */          \
  X(printf_arguments, NONE, int32_t limit;)                                                                            \
  X(stack_overflow, NONE, int32_t depth; uint32_t limit;)                                                              \
  X(call_target, NONE, uint64_t address;)                                                                              \
  X(free_address, NONE, uint64_t address;)                                                                             \
  X(stopped, NONE, )                                                                                                   \
  X(unsupported, NONE, int32_t feature;)
#define FAULT_KIND(name, ...) FAULT_##name,
enum { FAULTS(FAULT_KIND) };
#undef FAULT_KIND

// Windows in the generic address space.
#define VG_SHARED_WINDOW 0x4000000000000000ull
#define VG_LOCAL_WINDOW 0x4100000000000000ull
#define VG_CODE_WINDOW 0x4200000000000000ull

// Address spaces. An access to OUTSIDE is always invalid.
enum { GENERIC, GLOBAL, SHARED, LOCAL, OUTSIDE }; // Go: space

// Flags of a load or store, in c. The lowest 5 bits are the size of an element.
enum { M_SIGNED = 32, M_64 = 64, M_16 = 128, M_ADDR32 = 256, M_STRONG = 512, M_RELEASE = 1024 };

// Types of conversions and atomics.
enum { T_U8, T_U16, T_U32, T_U64, T_S8, T_S16, T_S32, T_S64, T_F16, T_BF16, T_F32, T_F64, T_TF32 }; // Go: type

// General arithmetic: operation, then flags with the rounding in the lowest three bits.
enum { A_ADD, A_SUB, A_MUL, A_FMA, A_DIV, A_RCP, A_SQRT, A_MIN, A_MAX, A_MIN_NAN, A_MAX_NAN, A_EX2, A_TANH, A_RSQRT, A_NEG, A_ABS }; // Go: arith
enum { RN, RZ, RM, RP, RNA }; // Go: round
enum { A_FTZ = 8, A_SAT = 16, A_RELU = 32, A_BF16 = 64, A_X2 = 128 }; // Go: flag
enum { C_INTEGER = 64 }; // of cvt besides FTZ, SAT and RELU: it rounds to an integer; Go: flag

// Comparisons. CMP_EQU to CMP_GEU and CMP_NAN are true if an operand is NaN.
enum {
  CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_EQU, CMP_NEU, CMP_LTU, CMP_LEU, CMP_GTU, CMP_GEU, CMP_NUM, CMP_NAN
};

// Tests of testp.
enum { TEST_FINITE, TEST_INFINITE, TEST_NUMBER, TEST_NOTANUMBER, TEST_NORMAL, TEST_SUBNORMAL };

// Flags of additions with carry.
enum { CARRY_SUBTRACTS = 1, CARRY_TAKES = 2, CARRY_GIVES = 4, CARRY_64 = 8 };

// prmt, dp4a and dp2a, szext, arithmetic on 16-bit pairs, cvt.pack (the lowest five bits are the size in bits).
enum { PRMT_PLAIN, PRMT_F4E, PRMT_B4E, PRMT_RC8, PRMT_ECL, PRMT_ECR, PRMT_RC16 };
enum { DOT_SIGNED_A = 1, DOT_SIGNED_B = 2, DOT_HIGH = 4 };
enum { SZEXT_SIGNED = 1, SZEXT_WRAPS = 2 };
enum { PAIR_ADD, PAIR_MIN, PAIR_MAX };
enum { PAIR_SIGNED = 1, PAIR_RELU = 2, PAIR_WORD = 4 };
enum { PACK_SIGNED = 32, PACK_FROM_UNSIGNED = 64 };

// Scalar video instructions.
enum { V_ADD, V_SUB, V_ABSDIFF, V_MIN, V_MAX, V_SHL, V_SHR, V_SET }; // Go: video

// Atomics and reductions.
enum { AT_ADD, AT_MIN, AT_MAX, AT_AND, AT_OR, AT_XOR, AT_EXCH, AT_CAS, AT_INC, AT_DEC }; // Go: atomic

// Target of st.async: one block, or all blocks of the cluster; other values are an AT_*.
enum { STORE_TO_ALL = 254, STORE_TO_ONE = 255 };

// Fences of all memory, and between proxies.
enum { FENCE_MEMORY, FENCE_PROXY, FENCE_TENSORMAP };

// Operations on an mbarrier.
enum { MB_INIT, MB_INVAL, MB_ARRIVE, MB_ARRIVE_TX, MB_DROP, MB_EXPECT_TX, MB_COMPLETE_TX, MB_TEST, MB_TRY, MB_TEST_PARITY, MB_TRY_PARITY,
       MB_PENDING };
// Offset of an mbarrier's count of bytes in flight.
#define MB_TX_ZERO (1ull << 22)

// Exchanges between lanes, and barriers.
enum { S_IDX, S_UP, S_DOWN, S_BFLY }; // Go: shfl
// Why a lane does not take part in an exchange.
enum { ABSENT_NEVER_STARTED, ABSENT_ENDED, ABSENT_OUTSIDE }; // Go: absent
// What is missing between an asynchronous copy and a read of its destination. Own: a wait, for a copy of the same thread;
// either: races are not checked.
enum { MISSING_WAIT, MISSING_BARRIER, MISSING_OWN, MISSING_EITHER }; // Go: missing
enum { VOTE_ALL, VOTE_ANY, VOTE_UNI };
enum { BAR_SYNC, BAR_POPC, BAR_AND, BAR_OR, BAR_ARRIVE };
enum { CLUSTER_ARRIVE, CLUSTER_WAIT };

// Functions of CUDA's runtime for kernels that launch kernels. HANDLE makes a stream or an event.
enum { DEVICE_BUFFER, DEVICE_LAUNCH, DEVICE_HANDLE, DEVICE_NOTHING };

// Direction of a bulk copy. Tensor copies use the first two.
enum { COPY_TO_SHARED, COPY_TO_GLOBAL, COPY_TO_CLUSTER };

// Fields that tensormap.replace changes, and tensormap.cp_fenceproxy.
enum { TM_ADDRESS, TM_RANK, TM_BOX, TM_DIM, TM_STRIDE, TM_STEP, TM_TYPE, TM_INTERLEAVE, TM_SWIZZLE, TM_ATOM, TM_FILL, TM_COPY };

// Element types of matrix products.
// of narrow floats, also of conversions; UE8M0 is for scales and conversions only.
enum { MMA_F16, MMA_BF16, MMA_TF32, MMA_E4M3, MMA_E5M2, MMA_E2M3, MMA_E3M2, MMA_E2M1, MMA_S8, MMA_U8, MMA_S4, MMA_U4, MMA_B1, MMA_UE8M0 };

// Sources of a conversion to narrow floats, and its flags.
enum { FROM_F32X2, FROM_F16X2, FROM_BF16X2, FROM_RANDOM }; // Go: narrow
enum { NARROW_RELU = 1, NARROW_UP = 2, NARROW_FINITE = 4 };

// Flags of mma, above the depth in bits 0 to 11: 8 rows; saturation; and instead of xor; results of float16; a is sparse;
// two e2m1 in a byte; scales are e4m3 instead of ue8m0; a kind is named, so that all products of an element are added at
// once. Bits 20 to 22: scales in a row of a.
enum { MULTIPLY_ROWS_8 = 0x1000, MULTIPLY_SATURATES = 0x2000, MULTIPLY_AND = 0x4000, MULTIPLY_HALF = 0x8000,
       MULTIPLY_SPARSE = 0x10000, MULTIPLY_PACKED = 0x20000, MULTIPLY_E4M3_SCALES = 0x40000, MULTIPLY_KIND = 0x80000 };

// Matrices of ldmatrix and stmatrix: of 8 rows with 16 bytes; the same with two-byte elements transposed; bytes transposed,
// 16 rows of them to load and 8 to store; 16 elements of 4 or 6 bits in a row, which become bytes.
enum { MATRIX_ROWS, MATRIX_COLUMNS, MATRIX_BYTES, MATRIX_4_BITS, MATRIX_6_BITS };

// tcgen05: instructions, shapes of loads and stores, kinds of products.
enum { TC_ALLOC, TC_DEALLOC, TC_LD, TC_ST, TC_MMA, TC_COMMIT, TC_CP, TC_SHIFT };
enum { TC_32X32, TC_16X64, TC_16X128, TC_16X256, TC_16X32X2 };
enum { TCK_F16, TCK_TF32, TCK_F8, TCK_I8, TCK_MXF8, TCK_MXF4 };
// Of tcgen05.mma, besides the number of scales in a row of a in bits 4 to 6: a is sparse, or is stationary (.ws).
enum { TCM_SPARSE = 1, TCM_WS = 2 };

// The geometry of a texture instruction, with its number of dimensions, the coordinates, and whether it gathers one
// component; what happens to a surface access outside, and whether it is a write.
enum { TEX_LAYERED = 4, TEX_CUBE = 8, TEX_INTEGER = 16, TEX_GATHER = 32 }; // Go: tex
enum { SURF_TRAP, SURF_CLAMP, SURF_ZERO, SURF_WRITE = 4 }; // Go: surf

// How a PTX instruction treats undefined values; see taint.h. The first three differ in the result's undefined bytes.
enum { TRACK_COMPUTE, TRACK_BITWISE, TRACK_MOVE, TRACK_SELECT, TRACK_SHUFFLE, TRACK_LOAD, TRACK_STORE, TRACK_USE }; // Go: track

// Special registers and their names in PTX. Their index is the offset from IN_WARP in units of 256 bytes.
#define SPECIALS(X)                                                                                                       \
  X(TID_X, tid.x) X(TID_Y, tid.y) X(TID_Z, tid.z) X(NTID_X, ntid.x) X(NTID_Y, ntid.y) X(NTID_Z, ntid.z)                    \
  X(CTAID_X, ctaid.x) X(CTAID_Y, ctaid.y) X(CTAID_Z, ctaid.z) X(NCTAID_X, nctaid.x) X(NCTAID_Y, nctaid.y)                  \
  X(NCTAID_Z, nctaid.z) X(LANEID, laneid) X(WARPID, warpid) X(NWARPID, nwarpid) X(LT, lanemask_lt) X(LE, lanemask_le)       \
  X(GT, lanemask_gt) X(GE, lanemask_ge) X(EQ, lanemask_eq) X(SMID, smid) X(NSMID, nsmid) X(GRIDID, gridid)                 \
  X(CLUSTER_X, clusterid.x) X(CLUSTER_Y, clusterid.y) X(CLUSTER_Z, clusterid.z) X(NCLUSTER_X, nclusterid.x)                \
  X(NCLUSTER_Y, nclusterid.y) X(NCLUSTER_Z, nclusterid.z) X(CCTAID_X, cluster_ctaid.x) X(CCTAID_Y, cluster_ctaid.y)        \
  X(CCTAID_Z, cluster_ctaid.z) X(CNCTAID_X, cluster_nctaid.x) X(CNCTAID_Y, cluster_nctaid.y)                               \
  X(CNCTAID_Z, cluster_nctaid.z) X(CCTARANK, cluster_ctarank) X(CNCTARANK, cluster_nctarank)                               \
  X(DYNAMIC_SMEM, dynamic_smem_size) X(TOTAL_SMEM, total_smem_size) X(ENVREG1, envreg1) X(ENVREG2, envreg2)
#define SPECIAL(id, name) SR_##id,
enum { SPECIALS(SPECIAL) SR_ZERO, SR_COUNT };
#undef SPECIAL
